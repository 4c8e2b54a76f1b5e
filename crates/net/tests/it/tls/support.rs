//! Two services that return their caller's identity, and members of a cluster.

use identity::tls::UnauthenticatedClients;
use identity::{
    Authority, Credentials, JoinToken, Member, MemberKind, Protection, TokenParameters, TokenRecords,
    Validity,
};
use net::{
    Caller, Channel, ClientIdentity, Handler, LocalFuture, Peer, PeerOptions, Router, Security, Server,
    ServerLimits, ServerOptions, Tls,
};
use rt::IoBuf;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use types::{NodeId, Result};
use wire::authorization::{AuthorizationRule, Callers};
use wire::{AnswerKind, Malformed, Message, Request, Service};

/// Time-out of calls whose duration isn't tested: both ends of a test may share a core with other
/// load.
pub const TEST_TIME_OUT: Duration = Duration::from_secs(300);

pub const CLUSTER: &str = "01234567-89ab-4def-8123-456789abcdef";

/// Asks the service with number `SERVICE` to fill the payload with a pattern, or to compare it.
#[derive(Clone, Debug)]
pub struct TestRequest<const SERVICE: u8> {
    pub fill: bool,
}

impl<const SERVICE: u8> Message for TestRequest<SERVICE> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.fill.into());
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        match bytes {
            [fill @ 0..=1] => Ok(TestRequest { fill: *fill == 1 }),
            _ => Err(Malformed::new("no question")),
        }
    }
}

impl<const SERVICE: u8> Request for TestRequest<SERVICE> {
    const SERVICE: Service = match SERVICE {
        1 => Service::Management,
        _ => Service::Storage,
    };

    fn answer_kind(&self) -> AnswerKind {
        if self.fill { AnswerKind::FillsPayload } else { AnswerKind::NoPayload }
    }

    fn rule(&self) -> AuthorizationRule {
        let callers = if SERVICE == 1 { Callers::Any } else { Callers::Members };
        AuthorizationRule { operation: "ask", callers }
    }
}

/// The caller as the service sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TestReply(pub String);

impl Message for TestReply {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.0.as_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<TestReply, Malformed> {
        Ok(TestReply(String::from_utf8(bytes.to_vec()).map_err(|_| Malformed::new("no text"))?))
    }
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(2654435761) >> 9) as u8).collect()
}

struct CallerService;

impl<const SERVICE: u8> Handler<TestRequest<SERVICE>, TestReply> for CallerService {
    fn handle(&self, _: TestRequest<SERVICE>, _: Option<IoBuf>) -> LocalFuture<'_, Result<TestReply>> {
        panic!("who calls is known");
    }

    fn handle_from<'a>(
        &'a self,
        caller: &'a Caller,
        ask: TestRequest<SERVICE>,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'a, Result<TestReply>> {
        Box::pin(async move {
            if let Some(payload) = payload {
                match ask.fill {
                    true => payload.copy_from(0, &pattern(payload.len())),
                    false => assert!(payload.as_slice() == pattern(payload.len()), "the data came altered"),
                }
            }
            let role = caller.proof.role().map_or("nobody".to_string(), Member::to_string);
            Ok(TestReply(format!("{role} by {}", caller.transport)))
        })
    }
}

pub fn now() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64
}

pub fn authority() -> Authority {
    Authority::create(CLUSTER, "test", now()).unwrap()
}

pub fn node(authority: &Authority, id: u32) -> Credentials {
    authority.issue(&Member::Node(NodeId(id)), Validity::of_node(now())).unwrap()
}

pub fn client(authority: &Authority, name: &str) -> Credentials {
    authority.issue(&Member::Client(name.into()), Validity::of_client(now())).unwrap()
}

pub fn token(authority: &Authority) -> JoinToken {
    let roles = MemberKind::Node.into();
    let offer = TokenParameters { addresses: vec!["a:1".into()], roles, expires: now() + 100, uses: 1 };
    TokenRecords::default().issue(authority, offer, now()).unwrap()
}

pub fn serve(security: Security) -> Arc<Server> {
    serve_at("127.0.0.1:0".parse().unwrap(), security)
}

pub fn serve_at(address: SocketAddr, security: Security) -> Arc<Server> {
    serve_within(address, security, ServerLimits::default())
}

pub fn serve_within(address: SocketAddr, security: Security, limits: ServerLimits) -> Arc<Server> {
    let options = ServerOptions {
        listen: vec![address],
        cores: 2,
        name: "node 1".into(),
        cluster: CLUSTER.into(),
        security,
        map: types::MapHandle::default(),
        checksum_payloads: true,
        limits: ServerLimits { stop_timeout: Duration::from_millis(200), ..limits },
    };
    let teller = Arc::new(CallerService);
    let router = Router::new()
        .with::<TestRequest<1>, TestReply>(teller.clone())
        .with::<TestRequest<3>, TestReply>(teller);
    Server::start(options, router).unwrap()
}

pub fn tls(credentials: &Credentials, protection: Protection, strangers: UnauthenticatedClients) -> Security {
    Security::Tls(Tls::member(credentials, protection, strangers).unwrap())
}

/// The default security of a member.
pub fn member(credentials: &Credentials) -> Security {
    tls(credentials, Protection::Encrypted, UnauthenticatedClients::Refused)
}

/// A client with `security` and a time-out.
pub fn channel<const SERVICE: u8>(
    server: &Server,
    security: Security,
    timeout: Duration,
) -> Channel<TestRequest<SERVICE>, TestReply> {
    channel_at(server.addresses().to_vec(), security, timeout)
}

pub fn channel_at<const SERVICE: u8>(
    addresses: Vec<SocketAddr>,
    security: Security,
    timeout: Duration,
) -> Channel<TestRequest<SERVICE>, TestReply> {
    let identity = ClientIdentity { cluster: CLUSTER.into(), name: "liar".into(), client: rt::random_u64() };
    let options = PeerOptions::new("node 1", addresses, identity);
    Channel::remote(Peer::new(PeerOptions { security, timeout, ..options }))
}

/// Calls the storage service of a server, with a long time-out.
pub fn ask(server: &Server, security: Security) -> Result<String> {
    ask_service::<3>(server, security)
}

pub fn ask_service<const SERVICE: u8>(server: &Server, security: Security) -> Result<String> {
    let channel = channel::<SERVICE>(server, security, TEST_TIME_OUT);
    rt::block_on(
        async move { channel.call(TestRequest { fill: false }, None).await.map(|TestReply(text)| text) },
    )
    .unwrap()
}
