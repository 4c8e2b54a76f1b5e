//! Admission of members on the management node: tokens and certificates.

use super::capability_key_store::CapabilityKeyStore;
use crate::node_config::{ClusterFile, NodeConfig, Protection};
use identity::{
    Authority, CLIENT_VALIDITY_S, CertificateIssue, CertificateTerms, ClientRecord, ClientRecords,
    ClientStatus, Credentials, Identity, JoinToken, Member, MemberKind, TOKEN_VALIDITY_S, TokenParameters,
    TokenRecord, TokenRecords, Validity,
};
use mgmt::{RenewedCertificate, StatePaths, Superblock};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use types::{Errno, Error, NodeId, Result, RevokedClient};
use wire::mgmt::{ClientInfo, ClientState, Join, NewClient, NewToken, TokenInfo};

/// Default number of nodes that may join with one token.
const DEFAULT_TOKEN_USES: u32 = 1;

/// Name in the certificate of clients that share a cluster file.
const SHARED_NAME: &str = "clients";

/// Longest validity of a certificate or a token, in seconds: a hundred years. No sum overflows.
const MAX_VALIDITY_S: u64 = 100 * 365 * 24 * 3600;

/// Issues tokens and certificates.
pub struct MembershipAuthority {
    authority: Authority,
    /// Expiry of the authority's own certificate, in Unix seconds: no other certificate outlives
    /// it.
    authority_ends_s: i64,
    tokens: Mutex<Records<TokenRecords>>,
    clients: Mutex<Records<ClientRecords>>,
    keys: Mutex<CapabilityKeyStore>,
    superblock: Superblock,
    addresses: Vec<String>,
    protection: Protection,
}

/// Records, and the file that stores them.
struct Records<R> {
    records: R,
    path: PathBuf,
}

impl<R: Clone> Records<R> {
    /// Makes a change, which is on disk when this returns. If it is refused or can't be written,
    /// nothing changes.
    fn change<T>(
        &mut self,
        edit: impl FnOnce(&mut R) -> identity::Result<T>,
        store: impl FnOnce(&R, &Path) -> identity::Result<()>,
    ) -> Result<T> {
        let mut changed = self.records.clone();
        let answer = edit(&mut changed)?;
        store(&changed, &self.path)?;
        self.records = changed;
        Ok(answer)
    }
}

fn lock_records<R>(records: &Mutex<Records<R>>) -> MutexGuard<'_, Records<R>> {
    records.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MembershipAuthority {
    /// Reads authority, tokens and clients of the management node.
    pub fn load(
        paths: &StatePaths,
        superblock: &Superblock,
        config: &NodeConfig,
    ) -> Result<MembershipAuthority> {
        let authority = Authority::load(&paths.authority())?;
        let (tokens, clients) = (paths.tokens(), paths.clients());
        Ok(MembershipAuthority {
            authority_ends_s: authority.certificate().validity()?.until,
            authority,
            tokens: Mutex::new(Records { records: TokenRecords::load(&tokens)?, path: tokens }),
            clients: Mutex::new(Records { records: ClientRecords::load(&clients)?, path: clients }),
            keys: Mutex::new(CapabilityKeyStore::load(&paths.capability_keys())?),
            superblock: superblock.clone(),
            addresses: config.addresses.clone(),
            protection: config.protection,
        })
    }

    /// Issues a certificate to the node that management runs on.
    pub fn own_credentials(&self, node: NodeId, now_s: i64) -> Result<Credentials> {
        Ok(self.authority.issue(&Member::Node(node), Validity::of_node(now_s))?)
    }

    /// Returns a cluster file that clients share.
    pub fn cluster_file(&self, now_s: i64) -> Result<ClusterFile> {
        if self.protection == Protection::Plain {
            return Ok(self.cluster_file_with(String::new()));
        }
        let terms = self.terms(None, None, now_s)?;
        let issue = lock_records(&self.clients)
            .change(|records| records.add_shared(SHARED_NAME, terms, now_s), ClientRecords::store)?;
        self.cluster_file_of(SHARED_NAME, issue)
    }

    fn cluster_file_of(
        &self,
        name: &str,
        CertificateIssue { number, validity }: CertificateIssue,
    ) -> Result<ClusterFile> {
        let credentials = self.authority.issue_to_client(name, validity, number)?;
        Ok(self.cluster_file_with(credentials.to_text()))
    }

    fn cluster_file_with(&self, credentials: String) -> ClusterFile {
        ClusterFile {
            name: self.superblock.name.clone(),
            cluster: self.superblock.uuid.clone(),
            management: self.addresses.clone(),
            networks: vec![],
            rack: None,
            protection: self.protection,
            public_socket: true,
            credentials,
        }
    }

    /// Returns the terms that an administrator sets for certificates: none outlives the authority's
    /// own.
    fn terms(&self, expires_s: Option<u64>, validity_s: Option<u64>, now_s: i64) -> Result<CertificateTerms> {
        let validity_s =
            validity_s.map(|s| checked_seconds("validity", s)).transpose()?.unwrap_or(CLIENT_VALIDITY_S);
        let end = expires_s.map(|s| checked_seconds("expires", s)).transpose()?.map(|s| now_s + s);
        // The authority's end is set only if it limits the default validity: an end on record is
        // otherwise the administrator's own.
        let end = match end {
            Some(end) => Some(end.min(self.authority_ends_s)),
            None => (now_s + validity_s > self.authority_ends_s).then_some(self.authority_ends_s),
        };
        Ok(CertificateTerms { end, validity_s })
    }

    /// Issues a token for nodes.
    pub fn node_token(&self, wanted: &NewToken, now_s: i64) -> Result<String> {
        let valid_s = wanted.expires_s.map(|s| checked_seconds("expires", s)).transpose()?;
        let offer = TokenParameters {
            addresses: self.addresses.clone(),
            roles: MemberKind::Node.into(),
            expires: now_s + valid_s.unwrap_or(TOKEN_VALIDITY_S),
            uses: wanted.uses.unwrap_or(DEFAULT_TOKEN_USES),
        };
        let issue = |records: &mut TokenRecords| records.issue(&self.authority, offer, now_s);
        Ok(lock_records(&self.tokens).change(issue, TokenRecords::store)?.to_string())
    }

    /// Checks that clients have certificates.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if they don't.
    fn require_certificates(&self) -> Result<()> {
        match self.protection {
            Protection::Plain => Err(Error::new(
                Errno::EOPNOTSUPP,
                "clients of this cluster have no certificates: its protection is plain (node.toml)",
            )
            .hint(
                "weft cluster token --client prints the shared cluster file; weft export restricts networks",
            )),
            _ => Ok(()),
        }
    }

    fn redeem(&self, records: &mut TokenRecords, join: &Join, now_s: i64) -> identity::Result<()> {
        let token: JoinToken = join.secret.parse()?;
        records.redeem(&self.superblock.uuid, token.id, &token.secret, MemberKind::Node, now_s)
    }
}

impl mgmt::MembershipAuthority for MembershipAuthority {
    fn check(&self, join: &Join, now_s: i64) -> Result<()> {
        let mut trial = lock_records(&self.tokens).records.clone();
        Ok(self.redeem(&mut trial, join, now_s)?)
    }

    fn admit(&self, join: &Join, node: NodeId, now_s: i64) -> Result<String> {
        // A token may be for one node only: steps that can fail come before it is used up.
        let chain = match self.protection {
            Protection::Plain => String::new(),
            _ => {
                let request = request_bytes(&join.csr)?;
                self.authority.certify(&request, &Member::Node(node), Validity::of_node(now_s))?
            }
        };
        let redeem = |records: &mut TokenRecords| self.redeem(records, join, now_s);
        lock_records(&self.tokens).change(redeem, TokenRecords::store)?;
        Ok(chain)
    }

    fn capability_keys(&self, now_s: i64) -> Result<String> {
        Ok(self.keys.lock().unwrap_or_else(PoisonError::into_inner).at(now_s)?.render())
    }

    fn certify_api(&self, csr: &str, names: &[String], now_s: i64) -> Result<String> {
        let request = request_bytes(csr)?;
        Ok(self.authority.certify_api(&request, names, now_s)?)
    }

    fn token(&self, wanted: &NewToken, now_s: i64) -> Result<String> {
        match (wanted.client, wanted.uses.is_some() || wanted.expires_s.is_some()) {
            (true, true) => {
                Err(Error::new(Errno::EINVAL, "a shared cluster file has no number of uses and no expiry")
                    .hint("weft client add NAME --expires TIME creates one for a single client"))
            }
            (true, false) => Ok(self.cluster_file(now_s)?.render()),
            (false, _) => self.node_token(wanted, now_s),
        }
    }

    fn tokens(&self, now_s: i64) -> Result<Vec<TokenInfo>> {
        let tokens = lock_records(&self.tokens);
        let in_force = tokens.records.list().iter().filter(|token| token.expires > now_s);
        Ok(in_force.map(token_info).collect())
    }

    fn revoke_token(&self, id: &str) -> Result<()> {
        let unknown = || {
            Error::new(Errno::ENOENT, format!("there is no join token {id}"))
                .hint("weft cluster token list shows the ids of valid tokens")
        };
        let number = u64::from_str_radix(id, 16).map_err(|_| unknown())?;
        let revoke = |records: &mut TokenRecords| Ok(records.revoke(number));
        match lock_records(&self.tokens).change(revoke, TokenRecords::store)? {
            true => Ok(()),
            false => Err(unknown()),
        }
    }

    fn add_client(&self, wanted: &NewClient, now_s: i64) -> Result<String> {
        self.require_certificates()?;
        let terms = self.terms(wanted.expires_s, wanted.validity_s, now_s)?;
        let issue = lock_records(&self.clients)
            .change(|records| records.add(&wanted.name, terms, now_s), ClientRecords::store)?;
        Ok(self.cluster_file_of(&wanted.name, issue)?.render())
    }

    fn clients(&self, now_s: i64) -> Result<Vec<ClientInfo>> {
        let clients = lock_records(&self.clients);
        Ok(clients.records.list().iter().map(|record| client_info(record, now_s)).collect())
    }

    fn revoke_client(&self, name: &str, now_s: i64) -> Result<()> {
        lock_records(&self.clients).change(|records| records.revoke(name, now_s), ClientRecords::store)
    }

    fn revoked(&self, now_s: i64) -> Vec<RevokedClient> {
        let mut clients = lock_records(&self.clients);
        let Records { records, path } = &mut *clients;
        if records.purge(now_s)
            && let Err(error) = records.store(path)
        {
            tracing::warn!(hint = error.hint(), "purged client records stay on disk: {error}");
        }
        records.revoked()
    }

    fn renew(
        &self,
        member: &Member,
        present: Option<&Identity>,
        csr: &str,
        now_s: i64,
    ) -> Result<RenewedCertificate> {
        self.require_certificates()?;
        let request = request_bytes(csr)?;
        match member {
            Member::Node(_) => {
                let mut validity = Validity::of_node(now_s);
                validity.until = validity.until.min(self.authority_ends_s);
                if present.is_some_and(|present| validity.until <= present.expires) {
                    return Err(identity::Error::NotRenewed { member: member.to_string() }.into());
                }
                let chain = self.authority.certify(&request, member, validity)?;
                Ok(RenewedCertificate { chain, ends_s: validity.until })
            }
            Member::Client(name) => {
                let present = present.ok_or_else(|| {
                    Error::new(Errno::EACCES, format!("{member} presents no certificate"))
                        .hint("a client renews its certificate over its own connection")
                })?;
                let CertificateIssue { number, validity } = lock_records(&self.clients)
                    .change(|records| records.renew(name, present, now_s), ClientRecords::store)?;
                let chain = self.authority.certify_client(&request, name, validity, number)?;
                Ok(RenewedCertificate { chain, ends_s: validity.until })
            }
        }
    }

    fn authority_ends_s(&self) -> Option<i64> {
        Some(self.authority_ends_s)
    }

    fn proves_names(&self) -> bool {
        self.protection != Protection::Plain
    }
}

fn token_info(token: &TokenRecord) -> TokenInfo {
    TokenInfo {
        id: format!("{:016x}", token.id),
        roles: token.roles.iter().map(|kind| kind.name().to_string()).collect(),
        uses_left: token.uses_left,
        ends_s: token.expires,
    }
}

fn client_info(record: &ClientRecord, now_s: i64) -> ClientInfo {
    ClientInfo {
        name: record.name.clone(),
        state: match record.status(now_s) {
            ClientStatus::Valid => ClientState::Valid,
            ClientStatus::ExpiresSoon => ClientState::ExpiresSoon,
            ClientStatus::Expired => ClientState::Expired,
            ClientStatus::Revoked => ClientState::Revoked,
        },
        ends_s: record.expires,
        last_s: record.terms.end,
        added_s: record.added,
        sessions: None,
    }
}

/// Converts a duration that an administrator gave, within the range of dates.
fn checked_seconds(what: &str, seconds: u64) -> Result<i64> {
    match i64::try_from(seconds).ok().filter(|_| seconds <= MAX_VALIDITY_S) {
        Some(seconds) => Ok(seconds),
        None => Err(Error::new(Errno::EINVAL, format!("--{what} is more than a hundred years"))
            .hint("name a shorter time, like 90d")),
    }
}

fn request_bytes(csr: &str) -> Result<Vec<u8>> {
    hex_bytes(csr).ok_or_else(|| {
        Error::new(Errno::EINVAL, "the request for a certificate is not in hexadecimal digits")
            .hint("use the same version of weft on both machines")
    })
}

/// Returns bytes as hexadecimal digits.
pub fn hex_text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hex_bytes(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mgmt::MembershipAuthority as _;
    use types::Role as Does;

    const NOW: i64 = 1_800_000_000;
    const DAY_S: u64 = 24 * 3600;

    fn gate(dir: &Path, protection: Protection) -> MembershipAuthority {
        let (paths, superblock) = (StatePaths::new(dir), Superblock::random("test"));
        if !paths.authority().exists() {
            let authority = Authority::create(&superblock.uuid, &superblock.name, NOW).unwrap();
            authority.store(&paths.authority()).unwrap();
        }
        let config = NodeConfig {
            cluster: superblock.uuid.clone(),
            node: NodeId(1),
            name: "m".into(),
            rack: None,
            roles: vec![Does::Mgmt],
            listen: vec![],
            management: vec!["10.0.0.1:7500".into()],
            addresses: vec!["10.0.0.1:7500".into()],
            networks: vec![],
            protection,
            threads: None,
            numa: None,
            api: vec![],
            api_names: vec![],
            durability: crate::cli::Durability::Relaxed,
            targets: vec![],
            backups: None,
        };
        MembershipAuthority::load(&paths, &superblock, &config).unwrap()
    }

    fn joining(secret: &str) -> Join {
        Join {
            secret: secret.into(),
            name: String::new(),
            roles: vec![],
            addresses: vec![],
            csr: hex_text(identity::PendingKey::generate().unwrap().request()),
            version: String::new(),
            clock_s: NOW,
            rack: None,
        }
    }

    /// Returns the identity in a cluster file.
    fn identity_in(file: &str) -> Identity {
        let file: ClusterFile = toml::from_str(file).unwrap();
        file.credentials().unwrap().unwrap().identity().clone()
    }

    fn added(name: &str) -> NewClient {
        NewClient { name: name.into(), expires_s: None, validity_s: None }
    }

    #[test]
    fn a_token_is_for_one_node_unless_it_says_otherwise() {
        let dir = tempfile::tempdir().unwrap();
        let gate = gate(dir.path(), Protection::Tls);
        let once = gate.token(&NewToken::default(), NOW).unwrap();
        gate.admit(&joining(&once), NodeId(2), NOW).unwrap();
        assert_eq!(gate.admit(&joining(&once), NodeId(3), NOW).unwrap_err().errno, Errno::EACCES);
        let wanted = NewToken { uses: Some(2), expires_s: Some(60), ..NewToken::default() };
        let twice = gate.token(&wanted, NOW).unwrap();
        gate.admit(&joining(&twice), NodeId(3), NOW).unwrap();
        let tokens = gate.tokens(NOW).unwrap();
        assert_eq!((tokens.len(), tokens[0].uses_left, tokens[0].ends_s), (1, 1, NOW + 60));
        assert!(gate.tokens(NOW + 60).unwrap().is_empty(), "it has ended");
        assert_eq!(self::gate(dir.path(), Protection::Tls).tokens(NOW).unwrap(), tokens, "on disk");
        // A token is revoked by its id, and only once.
        let error = gate.revoke_token("nonsense").unwrap_err();
        assert!(error.errno == Errno::ENOENT && error.hint.contains("weft cluster token list"), "{error}");
        gate.revoke_token(&tokens[0].id).unwrap();
        assert_eq!(gate.revoke_token(&tokens[0].id).unwrap_err().errno, Errno::ENOENT);
        assert_eq!(gate.check(&joining(&twice), NOW).unwrap_err().errno, Errno::EACCES);
        let shared = NewToken { client: true, expires_s: Some(60), ..NewToken::default() };
        assert_eq!(gate.token(&shared, NOW).unwrap_err().errno, Errno::EINVAL);
        let forever = NewToken { expires_s: Some(u64::MAX), ..NewToken::default() };
        assert_eq!(gate.token(&forever, NOW).unwrap_err().errno, Errno::EINVAL);
    }

    #[test]
    fn a_join_that_fails_does_not_use_the_token_up() {
        let dir = tempfile::tempdir().unwrap();
        let gate = gate(dir.path(), Protection::Tls);
        let token = gate.token(&NewToken::default(), NOW).unwrap();
        for csr in ["no digits", "00ff"] {
            let bad = Join { csr: csr.into(), ..joining(&token) };
            assert_eq!(gate.admit(&bad, NodeId(2), NOW).unwrap_err().errno, Errno::EINVAL);
        }
        // The records can't be written, because a directory has the name of their draft.
        let draft = dir.path().join("tokens.toml.draft");
        assert!(!draft.exists());
        std::fs::create_dir(&draft).unwrap();
        gate.admit(&joining(&token), NodeId(2), NOW).unwrap_err();
        std::fs::remove_dir(&draft).unwrap();
        gate.admit(&joining(&token), NodeId(2), NOW).unwrap();
        assert_eq!(gate.admit(&joining(&token), NodeId(3), NOW).unwrap_err().errno, Errno::EACCES);
    }

    #[test]
    fn each_client_has_a_name_and_is_revoked_by_it() {
        let dir = tempfile::tempdir().unwrap();
        let gate = gate(dir.path(), Protection::Tls);
        let (a, shared) =
            (gate.add_client(&added("a"), NOW).unwrap(), NewToken { client: true, ..NewToken::default() });
        let shared = identity_in(&gate.token(&shared, NOW).unwrap());
        let a = identity_in(&a);
        assert_eq!(
            (a.role.to_string(), shared.role.to_string()),
            ("client/a".into(), "client/clients".into())
        );
        assert_eq!(gate.add_client(&added("a"), NOW).unwrap_err().errno, Errno::EEXIST);
        gate.revoke_client("a", NOW).unwrap();
        let revoked = gate.revoked(NOW);
        let map = types::ClusterMap { revoked: revoked.clone(), ..types::ClusterMap::default() };
        assert!(map.is_revoked("a", a.issue_number().unwrap()));
        assert!(!map.is_revoked("clients", shared.issue_number().unwrap()));
        let again = identity_in(&gate.add_client(&added("a"), NOW).unwrap());
        assert!(!map.is_revoked("a", again.issue_number().unwrap()));
        // The revocation is on disk.
        assert_eq!(self::gate(dir.path(), Protection::Tls).revoked(NOW), revoked);
        let states: Vec<(String, ClientState)> =
            gate.clients(NOW).unwrap().into_iter().map(|client| (client.name, client.state)).collect();
        assert_eq!(states, [("a".into(), ClientState::Valid), ("clients".into(), ClientState::Valid)]);
    }

    #[test]
    fn a_renewal_goes_no_further_than_the_administrator_said() {
        let dir = tempfile::tempdir().unwrap();
        let gate = gate(dir.path(), Protection::Tls);
        let csr = hex_text(identity::PendingKey::generate().unwrap().request());
        let wanted = NewClient { expires_s: Some(9 * DAY_S), validity_s: Some(3 * DAY_S), ..added("a") };
        let mut present = identity_in(&gate.add_client(&wanted, NOW).unwrap());
        let end = NOW + 9 * DAY_S as i64;
        let mut now = NOW;
        while present.expires < end {
            now = present.expires - DAY_S as i64;
            let renewed = gate.renew(&present.role, Some(&present), &csr, now).unwrap();
            assert!(renewed.ends_s > present.expires && renewed.ends_s <= end);
            let (pem, _) = renewed.chain.split_once("-----END CERTIFICATE-----").unwrap();
            let pem = format!("{pem}-----END CERTIFICATE-----\n");
            let der = rustls::pki_types::pem::PemObject::from_pem_slice(pem.as_bytes());
            let renewed = Identity::of(&der.unwrap()).unwrap();
            assert_eq!(renewed.role, present.role);
            assert!(renewed.issue_number() > present.issue_number());
            present = renewed;
        }
        let late = gate.renew(&present.role, Some(&present), &csr, end - 9).unwrap_err();
        assert_eq!(late.errno, Errno::EPERM, "{late}");
        gate.revoke_client("a", now).unwrap();
        let revoked = gate.renew(&present.role, Some(&present), &csr, end - 9).unwrap_err();
        assert_eq!(revoked.errno, Errno::EACCES, "{revoked}");
        // A client must present its own certificate; a node in this process needn't.
        assert_eq!(gate.renew(&present.role, None, &csr, now).unwrap_err().errno, Errno::EACCES);
        let node = gate.renew(&Member::Node(NodeId(1)), None, &csr, now).unwrap();
        assert!(node.ends_s <= gate.authority_ends_s);
    }

    #[test]
    fn without_certificates_there_are_no_names() {
        let dir = tempfile::tempdir().unwrap();
        let gate = gate(dir.path(), Protection::Plain);
        let error = gate.add_client(&added("a"), NOW).unwrap_err();
        assert!(error.errno == Errno::EOPNOTSUPP && error.hint.contains("--client"), "{error}");
        assert!(!gate.proves_names() && gate.clients(NOW).unwrap().is_empty());
        let shared = NewToken { client: true, ..NewToken::default() };
        let file: ClusterFile = toml::from_str(&gate.token(&shared, NOW).unwrap()).unwrap();
        assert!(file.credentials().unwrap().is_none());
    }
}
