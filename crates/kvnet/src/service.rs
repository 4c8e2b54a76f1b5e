//! The service in front of a store.

use bytes::Bytes;
use kv::{Batch, Guard, KvError, Outcome, Ticket, Writer};
use net::{Handler, LocalFuture};
use parking_lot::Mutex;
use rt::IoBuf;
use std::sync::Arc;
use types::{Errno, Error, HashMap, Result};
use wire::{KvAnswer, KvBatch, KvOutcome, KvReply, KvRequest};

/// Clients whose last apply is cached; beyond it the one that was idle longest is dropped. A client
/// is one start of a metadata service during the life of the store's process, so there are few.
const MAX_CLIENTS: usize = 1024;

/// Bytes of keys and values in an answer: with their overhead they fit into the body of a message.
const MAX_ANSWER_BYTES: usize = 768 << 10;

/// Encoding overhead of a key or a value in an answer, in bytes, estimated generously.
const ITEM_OVERHEAD: usize = 16;

/// Most pairs that are read for one answer.
const MAX_SCANNED_PAIRS: usize = 1024;

/// Serves requests to the store of this process.
pub struct KvService {
    writer: Arc<Writer>,
    instance: u64,
    clients: Mutex<Clients>,
}

#[derive(Default)]
struct Clients {
    by_id: HashMap<u64, Client>,
    /// Counts applies, for the order of last use.
    clock: u64,
}

/// The last apply of a client.
struct Client {
    number: u64,
    tickets: Vec<Ticket>,
    last_used: u64,
}

impl KvService {
    /// Creates a service over the writer of this process.
    pub fn new(writer: Arc<Writer>) -> KvService {
        KvService { writer, instance: rt::random_u64(), clients: Mutex::default() }
    }

    async fn answer(&self, request: KvRequest) -> Result<KvReply> {
        let engine = self.writer.engine();
        let answer = match request {
            KvRequest::Get { keys } => KvAnswer::Values(self.get(&keys).map_err(to_client_error)?),
            KvRequest::Scan { from, to, limit } => self.scan(&from, &to, limit).map_err(to_client_error)?,
            KvRequest::Apply { verifier, batches, .. } if verifier != 0 && verifier != engine.verifier() => {
                KvAnswer::Outcomes(vec![KvOutcome::Unknown; batches.len()])
            }
            KvRequest::Apply { writer, number, batches, .. } => {
                let tickets = self.enqueue_once(writer, number, batches)?;
                let mut outcomes = Vec::with_capacity(tickets.len());
                for ticket in &tickets {
                    outcomes.push(outcome(self.writer.wait(ticket).await.map_err(to_client_error)?));
                }
                KvAnswer::Outcomes(outcomes)
            }
            KvRequest::Persist => {
                self.writer.sync().await.map_err(to_client_error)?;
                KvAnswer::Done
            }
        };
        let (verifier, has_room) = (engine.verifier(), engine.has_room());
        Ok(KvReply { instance: self.instance, verifier, has_space: has_room, answer })
    }

    fn get(&self, keys: &[Bytes]) -> Result<Vec<Option<Bytes>>, KvError> {
        let mut values = Vec::with_capacity(keys.len());
        let mut bytes = 0;
        for key in keys {
            let value = self.writer.engine().get(key)?;
            bytes += value.as_ref().map_or(0, Bytes::len) + ITEM_OVERHEAD;
            if bytes > MAX_ANSWER_BYTES && !values.is_empty() {
                break;
            }
            values.push(value);
        }
        Ok(values)
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: u64) -> Result<KvAnswer, KvError> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let scan_limit = limit.min(MAX_SCANNED_PAIRS);
        let mut pairs = self.writer.engine().scan(from, to, scan_limit)?;
        let mut bytes = 0;
        let fits = |(key, value): &&(Bytes, Bytes)| {
            bytes += key.len() + value.len() + 2 * ITEM_OVERHEAD;
            bytes <= MAX_ANSWER_BYTES
        };
        let count = pairs.iter().take_while(fits).count().max(1).min(pairs.len());
        let more = count < pairs.len() || (pairs.len() == scan_limit && scan_limit < limit);
        pairs.truncate(count);
        Ok(KvAnswer::Pairs { pairs, more })
    }

    /// Enqueues the batches in the order of commits, unless they were enqueued before.
    fn enqueue_once(&self, writer: u64, number: u64, batches: Vec<KvBatch>) -> Result<Vec<Ticket>> {
        let mut clients = self.clients.lock();
        clients.clock += 1;
        let used = clients.clock;
        if let Some(client) = clients.by_id.get_mut(&writer) {
            client.last_used = used;
            if client.number == number {
                return Ok(client.tickets.clone());
            }
            if client.number > number {
                let message =
                    format!("apply {number} arrived after apply {} of the same writer", client.number);
                return Err(Error::new(Errno::ESTALE, message));
            }
        }
        let tickets: Vec<Ticket> = batches.into_iter().map(|b| self.writer.enqueue(batch(b))).collect();
        clients.by_id.insert(writer, Client { number, tickets: tickets.clone(), last_used: used });
        if clients.by_id.len() > MAX_CLIENTS {
            let oldest = clients.by_id.iter().min_by_key(|(_, client)| client.last_used).map(|(id, _)| *id);
            oldest.iter().for_each(|id| _ = clients.by_id.remove(id));
        }
        Ok(tickets)
    }
}

impl Handler<KvRequest, KvReply> for KvService {
    fn handle(&self, request: KvRequest, _payload: Option<IoBuf>) -> LocalFuture<'_, Result<KvReply>> {
        Box::pin(self.answer(request))
    }
}

fn batch(batch: KvBatch) -> Batch {
    let guard = |(key, expected): (Bytes, Option<Bytes>)| Guard { key: key.into(), expected };
    let write = |(key, value): (Bytes, Option<Bytes>)| (Vec::from(key), value);
    Batch {
        guards: batch.guards.into_iter().map(guard).collect(),
        writes: batch.writes.into_iter().map(write).collect(),
    }
}

fn outcome(outcome: Outcome) -> KvOutcome {
    match outcome {
        Outcome::Applied => KvOutcome::Applied,
        Outcome::GuardFailed => KvOutcome::GuardFailed,
        Outcome::Uncertain => KvOutcome::Unknown,
    }
}

/// Converts a failure of the engine to the error for the client.
fn to_client_error(error: KvError) -> Error {
    let errno = match &error {
        KvError::NoSpace { .. } => Errno::ENOSPC,
        KvError::Locked { .. } => Errno::EBUSY,
        KvError::TooLarge { .. } => Errno::E2BIG,
        KvError::NoSnapshot { .. } => Errno::EOPNOTSUPP,
        KvError::Unreachable { .. } => Errno::ETIMEDOUT,
        KvError::Io { .. } | KvError::Corrupt { .. } => Errno::EIO,
    };
    Error::new(errno, error.to_string()).hint("check that node's log and disk, then restart weft serve there")
}
