//! Measures the hardware of this node without the file system, on request.

use crate::service::StorageService;
use ceilings::{BestRate, Limit, cpu, drive, network};
use chunkstore::Store;
use routing::StorageChannel;
use rt::IoBuf;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use types::{ChunkFileId, Errno, Error, NodeId, Result, SessionId, TargetId};
use wire::{MAX_RATES, Measure, MeasuredRate, RateQuantity, StorageOp, StorageReply, StorageRequest};

/// The longest time that one thing may be measured.
const MAX_DURATION: Duration = Duration::from_secs(600);

/// Limit of concurrent connections to another node that a measurement may use.
const MAX_STREAMS: u32 = 64;

/// How often the service checks whether the processor's measurement has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Opens a new connection to another node at each call, so that several of them are several
/// streams.
pub type Connect = Box<dyn Fn(NodeId) -> Result<StorageChannel> + Send + Sync>;

/// The measurements under way.
#[derive(Default)]
pub(crate) struct Measurements {
    targets: Mutex<BTreeSet<TargetId>>,
    connect: OnceLock<Connect>,
}

impl Measurements {
    fn begin(&self, target: TargetId) -> Result<MeasurementGuard<'_>> {
        if self.targets.lock().unwrap_or_else(PoisonError::into_inner).insert(target) {
            return Ok(MeasurementGuard { measurements: self, target });
        }
        Err(Error::new(Errno::EBUSY, format!("target {target} is being measured already"))
            .hint("wait for weft bench storage, which was started elsewhere"))
    }
}

/// Marks a target as being measured until it is dropped.
struct MeasurementGuard<'a> {
    measurements: &'a Measurements,
    target: TargetId,
}

impl Drop for MeasurementGuard<'_> {
    fn drop(&mut self) {
        self.measurements.targets.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.target);
    }
}

/// Ends the processor's measurement when its caller no longer waits for it.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends traffic to a node.
struct NodeSender(StorageChannel);

impl network::MessageChannel for NodeSender {
    type Error = Error;

    async fn send(&self, bytes: Option<IoBuf>) -> Result<()> {
        let request = StorageRequest::new(SessionId(0), TargetId(0), ChunkFileId(0), StorageOp::Traffic);
        self.0.call(request, bytes).await.map(drop)
    }
}

impl StorageService {
    /// Enables measurements of the network to other nodes. Only the first call counts.
    pub fn set_network_connector(&self, connect: Connect) {
        self.measurements.connect.get_or_init(|| connect);
    }

    /// Measures, and leaves nothing behind, also when the future is dropped.
    pub(crate) async fn measure(
        &self,
        target: TargetId,
        what: Measure,
        duration: Duration,
    ) -> Result<StorageReply> {
        if duration.is_zero() || duration > MAX_DURATION {
            let message = format!("can't measure for {} ms", duration.as_millis());
            return Err(Error::new(Errno::EINVAL, message)
                .hint(format!("use up to {} seconds", MAX_DURATION.as_secs())));
        }
        let found = match what {
            Measure::Drive { size } => self.measure_drive(target, size, duration).await?,
            Measure::Network { to, streams } => self.measure_network(to, streams, duration).await?,
            Measure::Cpu => measure_cpu(duration).await?,
        };
        Ok(StorageReply::Rates(found.iter().filter_map(rate).take(MAX_RATES).collect()))
    }

    async fn measure_drive(&self, target: TargetId, size: u64, each: Duration) -> Result<Vec<BestRate>> {
        let store = self.stores().find(|store| store.target() == target).cloned().ok_or_else(|| {
            Error::new(Errno::ENODEV, format!("target {target} is not served here"))
                .hint("weft target list shows where targets are")
        })?;
        let _exclusive = self.measurements.begin(target)?;
        require_free_space(&store, size).await?;
        drive::measure(store.dir(), drive::DrivePlan { size, each }).await.map_err(|error| {
            let message = format!("target {target} ({}) can't be measured: {error}", store.dir().display());
            let errno = error.raw_os_error().map_or(Errno::EIO, Errno::Number);
            let hint = match errno {
                Errno::EINVAL => "its file system has no direct I/O: use XFS or ext4",
                _ => "check the drive and the kernel log",
            };
            Error::new(errno, message).hint(hint)
        })
    }

    async fn measure_network(&self, to: NodeId, streams: u32, each: Duration) -> Result<Vec<BestRate>> {
        let connect = self.measurements.connect.get().ok_or_else(|| {
            Error::new(
                Errno::EOPNOTSUPP,
                "this cluster is one process: there is no network between its services",
            )
            .hint("weft bench storage and weft bench cpu measure what it has")
        })?;
        if !(1..=MAX_STREAMS).contains(&streams) {
            return Err(Error::new(Errno::EINVAL, format!("can't measure {streams} streams"))
                .hint(format!("use 1 to {MAX_STREAMS}")));
        }
        let channels =
            (0..streams).map(|_| connect(to).map(NodeSender)).collect::<Result<Vec<NodeSender>>>()?;
        network::measure(&channels, each).await
    }
}

/// Refuses a file that would bring the target into the emergency class: it would get no new files
/// then.
async fn require_free_space(store: &Store, size: u64) -> Result<()> {
    let space = store.space().await.map_err(|error| {
        Error::new(
            Errno::EIO,
            format!("the free space of target {} is not known: {}", store.target(), error.message()),
        )
        .hint(error.hint().to_string())
    })?;
    let usable = layout::usable_bytes(space.capacity, space.free);
    if usable >= size {
        return Ok(());
    }
    let message = format!(
        "target {} can't be measured with a file of {size} bytes: {} are free, of which {usable} can be used before it is in an emergency",
        store.target(),
        space.free
    );
    Err(Error::new(Errno::ENOSPC, message).hint("use a smaller --size, or free space on the target"))
}

/// Measures on separate threads, so that the calling core can process requests.
async fn measure_cpu(duration: Duration) -> Result<Vec<BestRate>> {
    let stop = StopOnDrop(Arc::default());
    let (flag, nanoseconds) = (stop.0.clone(), duration.as_nanos() as u64);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()) as u32;
    let work = move || cpu::measure(threads, nanoseconds, &flag);
    let failed =
        |why: String| Error::new(Errno::EAGAIN, why).hint("try again when the machine has free resources");
    let thread = std::thread::Builder::new()
        .name("weft-measure".into())
        .spawn(work)
        .map_err(|error| failed(format!("can't start a thread: {error}")))?;
    while !thread.is_finished() {
        rt::sleep(POLL_INTERVAL).await;
    }
    let found = thread.join().ok().flatten();
    found.ok_or_else(|| failed("the measurement of the processor was interrupted".into()))
}

/// Converts to the wire type; `None` for what services don't measure.
fn rate(best: &BestRate) -> Option<MeasuredRate> {
    let of = match best.limit {
        Limit::StorageWrite => RateQuantity::Write,
        Limit::StorageRead => RateQuantity::Read,
        Limit::StorageRandomWrite => RateQuantity::RandomWrite,
        Limit::StorageRandomRead => RateQuantity::RandomRead,
        Limit::Network => RateQuantity::Network,
        Limit::RoundTrips => RateQuantity::RoundTrips,
        Limit::MemoryCopy => RateQuantity::MemoryCopy,
        Limit::Checksum => RateQuantity::Checksum,
        Limit::Encoding => RateQuantity::Encoding,
        Limit::FuseCalls | Limit::Processors => return None,
    };
    Some(MeasuredRate { of, rate: best.rate as u64, streams: best.streams })
}
