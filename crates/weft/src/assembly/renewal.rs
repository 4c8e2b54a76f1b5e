//! Renewal of the certificates of nodes and mounts before they expire.
//!
//! When a third of its validity is left, the process requests another certificate from management,
//! over a connection that shows the present one. New connections then show the renewed certificate,
//! which also replaces the old one in its file. If the file can't be written, the process continues
//! with the certificate in memory, retries, and logs a warning.

use super::membership_authority::hex_text;
use crate::node_config::ClusterFile;
use ::node::{MgmtChannel, unexpected_reply};
use identity::{Credentials, PendingKey};
use net::{Security, Tls};
use std::path::PathBuf;
use std::time::Duration;
use types::{Errno, Error, Result, Timestamp};
use wire::{MgmtReply, MgmtRequest};

/// Longest wait between two checks: the system clock may be set meanwhile.
const MAX_CHECK_INTERVAL_S: i64 = 3600;

/// Where a process stores its certificate.
#[derive(Clone)]
pub enum CertificateFile {
    /// A node, in this directory.
    Node(PathBuf),
    /// A mount, in this cluster file.
    Mount(PathBuf),
}

/// Renews the certificate of a process.
#[derive(Clone)]
pub struct Renewal {
    tls: Tls,
    credentials: Credentials,
    certificate_file: CertificateFile,
    /// Whether the certificate is in its file.
    is_stored: bool,
    /// Last refusal, which is logged only once.
    refused: Option<String>,
}

/// Outcome of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CheckOutcome {
    /// The renewal isn't due.
    NotDue,
    /// The certificate was renewed, and new connections show it.
    Renewed,
    /// The renewal is due, and failed.
    Failed,
}

impl Renewal {
    /// Creates it for a process that shows these credentials; `None` if connections are
    /// unprotected.
    pub fn new(
        security: &Security,
        credentials: Option<&Credentials>,
        certificate_file: CertificateFile,
    ) -> Option<Renewal> {
        match (security, credentials) {
            (Security::Tls(tls), Some(credentials)) => Some(Renewal {
                tls: tls.clone(),
                credentials: credentials.clone(),
                certificate_file,
                is_stored: true,
                refused: None,
            }),
            _ => None,
        }
    }

    /// Renews the certificate for ever.
    pub async fn run(mut self, management: MgmtChannel) {
        loop {
            let outcome = self.check_and_renew(&management, rt::now().secs).await;
            rt::sleep(self.next_check_in(outcome, rt::now().secs)).await;
        }
    }

    /// Returns the time until the next check.
    fn next_check_in(&self, outcome: CheckOutcome, now_s: i64) -> Duration {
        let validity = self.credentials.validity();
        let seconds = match outcome {
            CheckOutcome::NotDue | CheckOutcome::Renewed => validity.renew_at() - now_s,
            // More often if less time is left.
            CheckOutcome::Failed => (validity.until - now_s) / 8,
        };
        Duration::from_secs(seconds.clamp(1, MAX_CHECK_INTERVAL_S).unsigned_abs())
    }

    /// Renews the certificate if that is due.
    async fn check_and_renew(&mut self, management: &MgmtChannel, now_s: i64) -> CheckOutcome {
        if !self.is_stored {
            self.store();
        }
        if now_s < self.credentials.validity().renew_at() {
            return CheckOutcome::NotDue;
        }
        match self.renew(management).await {
            Ok(()) => {
                self.refused = None;
                CheckOutcome::Renewed
            }
            Err(error) => {
                self.log_refusal(&error);
                CheckOutcome::Failed
            }
        }
    }

    async fn renew(&mut self, management: &MgmtChannel) -> Result<()> {
        let key = PendingKey::generate()?;
        let identity = self.credentials.identity();
        let request = MgmtRequest::Renew { member: identity.to_string(), csr: hex_text(key.request()) };
        let chain = match management.call(request, None).await? {
            MgmtReply::Certificate { chain } => chain,
            other => return Err(unexpected_reply(&other)),
        };
        let renewed = key.certified(&chain)?;
        if renewed.identity().role != identity.role || renewed.identity().cluster != identity.cluster {
            let message = format!("management has certified {}, not {identity}", renewed.identity());
            return Err(
                Error::new(Errno::EPROTO, message).hint("install the same version of weft everywhere")
            );
        }
        self.tls.renew(&renewed)?;
        let ends = Timestamp::new(renewed.identity().expires, 0);
        tracing::info!("the certificate of {identity} was renewed; it expires on {ends}");
        (self.credentials, self.is_stored) = (renewed, false);
        self.store();
        Ok(())
    }

    /// Writes the certificate to its file.
    fn store(&mut self) {
        let stored = match &self.certificate_file {
            CertificateFile::Node(dir) => self.credentials.store(dir).map_err(Error::from),
            CertificateFile::Mount(path) => ClusterFile::renew(path, &self.credentials),
        };
        match stored {
            Ok(()) => self.is_stored = true,
            Err(error) => {
                let place = match &self.certificate_file {
                    CertificateFile::Node(path) | CertificateFile::Mount(path) => path.display(),
                };
                tracing::warn!(
                    hint = &*error.hint,
                    "the renewed certificate can't be stored in {place}, which has the old one: this process continues with \
                     the new one, but a restart needs the file: {}",
                    error.message
                );
            }
        }
    }

    fn log_refusal(&mut self, error: &Error) {
        let ends = Timestamp::new(self.credentials.identity().expires, 0);
        if self.refused.as_deref() == Some(&*error.message) {
            tracing::debug!(%error, "the certificate is not renewed yet");
            return;
        }
        tracing::warn!(
            hint = &*error.hint,
            "the certificate of {}, which expires on {ends}, could not be renewed: {}",
            self.credentials.identity(),
            error.message
        );
        self.refused = Some(error.message.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_config::Protection;
    use identity::tls::UnauthenticatedClients;
    use identity::{Authority, CLOCK_SKEW_S, Validity};
    use net::{Channel, Handler, LocalFuture};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::sync::Arc;

    const CLUSTER: &str = "01234567-89ab-4def-8123-456789abcdef";
    /// Validity of the certificates in these tests, in seconds.
    const LIFETIME_S: i64 = 3000;

    /// Issues certificates from this time on, or refuses all.
    struct TestAuthority {
        authority: Authority,
        now_s: i64,
        is_open: bool,
    }

    fn validity(now_s: i64) -> Validity {
        Validity { from: now_s - CLOCK_SKEW_S, until: now_s + LIFETIME_S }
    }

    impl Handler<MgmtRequest, MgmtReply> for TestAuthority {
        fn handle(&self, request: MgmtRequest, _: Option<rt::IoBuf>) -> LocalFuture<'_, Result<MgmtReply>> {
            let MgmtRequest::Renew { member, csr } = request else { panic!("{request:?}") };
            let digits = csr.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
            let csr: Vec<u8> = digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
            let certified = match self.is_open {
                true => self.authority.certify(&csr, &member.parse().unwrap(), validity(self.now_s)),
                false => Err(identity::Error::NotRenewed { member }),
            };
            Box::pin(async move { Ok(MgmtReply::Certificate { chain: certified? }) })
        }
    }

    fn mounted(path: &Path, authority: &Authority, now_s: i64) -> Renewal {
        let credentials = authority.issue_to_client("a", validity(now_s), 1).unwrap();
        let file = ClusterFile {
            name: "test".into(),
            cluster: CLUSTER.into(),
            management: vec!["mgmt1:7500".into()],
            networks: vec!["10.0.0.0/8".into()],
            rack: None,
            protection: Protection::Tls,
            public_socket: true,
            credentials: credentials.to_text(),
        };
        file.write(path).unwrap();
        let how = identity::Protection::Encrypted;
        let tls = Tls::member(&credentials, how, UnauthenticatedClients::Refused).unwrap();
        Renewal::new(&Security::Tls(tls), Some(&credentials), CertificateFile::Mount(path.into())).unwrap()
    }

    fn check(renewal: &mut Renewal, authority: Authority, now_s: i64, is_open: bool) -> CheckOutcome {
        let management: MgmtChannel =
            Channel::in_process(Arc::new(TestAuthority { authority, now_s, is_open }));
        let mut moved = renewal.clone();
        let (outcome, moved) =
            rt::block_on(async move { (moved.check_and_renew(&management, now_s).await, moved) }).unwrap();
        *renewal = moved;
        outcome
    }

    fn authority() -> (Authority, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        Authority::create(CLUSTER, "test", rt::now().secs).unwrap().store(dir.path()).unwrap();
        (Authority::load(dir.path()).unwrap(), dir)
    }

    #[test]
    fn a_mount_renews_its_file_in_the_last_third() {
        let (authority, dir) = authority();
        let again = || Authority::load(dir.path()).unwrap();
        let (path, began_s) = (dir.path().join("client.toml"), rt::now().secs);
        let mut renewal = mounted(&path, &authority, began_s);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
        let due_s = began_s + LIFETIME_S - LIFETIME_S / 3;
        assert_eq!(check(&mut renewal, authority, due_s - 1, true), CheckOutcome::NotDue);
        assert_eq!(renewal.next_check_in(CheckOutcome::NotDue, due_s - 7), Duration::from_secs(7));
        assert_eq!(check(&mut renewal, again(), due_s, false), CheckOutcome::Failed);
        assert_eq!(renewal.next_check_in(CheckOutcome::Failed, due_s), Duration::from_secs(1000 / 8));
        assert_eq!(check(&mut renewal, again(), due_s, true), CheckOutcome::Renewed);
        let file = ClusterFile::read(&path).unwrap();
        let credentials = Credentials::from_text(&file.credentials).unwrap();
        assert_eq!(credentials.identity().expires, due_s + LIFETIME_S);
        assert_eq!(credentials.identity().role.to_string(), "client/a");
        assert_eq!((file.networks.len(), &*file.name), (1, "test"));
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o400, "the mode that the administrator gave it");
        assert_eq!(check(&mut renewal, again(), due_s + 1, true), CheckOutcome::NotDue);
    }

    #[test]
    fn an_unwritable_file_is_written_later() {
        let (authority, dir) = authority();
        let again = || Authority::load(dir.path()).unwrap();
        let (folder, began_s) = (dir.path().join("etc"), rt::now().secs);
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("client.toml");
        let mut renewal = mounted(&path, &authority, began_s);
        let gone = dir.path().join("gone");
        std::fs::rename(&folder, &gone).unwrap();
        let due_s = began_s + LIFETIME_S - LIFETIME_S / 3;
        assert_eq!(check(&mut renewal, authority, due_s, true), CheckOutcome::Renewed);
        assert_eq!(renewal.credentials.identity().expires, due_s + LIFETIME_S);
        std::fs::rename(&gone, &folder).unwrap();
        assert_eq!(check(&mut renewal, again(), due_s + 1, true), CheckOutcome::NotDue);
        let file = ClusterFile::read(&path).unwrap();
        let credentials = Credentials::from_text(&file.credentials).unwrap();
        assert_eq!(credentials.identity().expires, due_s + LIFETIME_S);
    }

    #[test]
    fn a_node_renews_its_identity() {
        let (authority, dir) = authority();
        let began_s = rt::now().secs;
        let role = identity::Member::Node(types::NodeId(3));
        let credentials = authority.issue(&role, validity(began_s)).unwrap();
        let home = dir.path().join("identity");
        credentials.store(&home).unwrap();
        let how = identity::Protection::Encrypted;
        let tls = Tls::member(&credentials, how, UnauthenticatedClients::Refused).unwrap();
        let certificate_file = CertificateFile::Node(home.clone());
        let mut renewal = Renewal::new(&Security::Tls(tls), Some(&credentials), certificate_file).unwrap();
        let due_s = began_s + LIFETIME_S;
        assert_eq!(check(&mut renewal, authority, due_s, true), CheckOutcome::Renewed);
        assert_eq!(Credentials::load(&home).unwrap().identity().expires, due_s + LIFETIME_S);
    }
}
