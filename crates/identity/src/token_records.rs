//! The tokens that management has issued.

use crate::authority::Authority;
use crate::error::{Error, Result};
use crate::files;
use crate::role::{MemberKind, MemberKinds};
use crate::token::{JoinToken, TokenSecret};
use crate::{MAX_TOKEN_ADDRESSES, MAX_TOKENS};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use std::path::Path;

/// Format of the file.
const FORMAT: i64 = 1;

/// Parameters of a new token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TokenParameters {
    /// Addresses of management: `host:port`.
    pub addresses: Vec<String>,
    /// Kinds of members that the bearer may become.
    pub roles: MemberKinds,
    /// When the token expires, Unix seconds.
    pub expires: i64,
    /// Number of members that may join with it.
    pub uses: u32,
}

/// Management's record of a token. The secret can't be derived from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TokenRecord {
    /// The token's public id.
    pub id: u64,
    /// Kinds of members that its bearers may become.
    pub roles: MemberKinds,
    /// When it expires, Unix seconds.
    pub expires: i64,
    /// Number of members that may still join with it.
    pub uses_left: u32,
    /// HMAC-SHA256 of the cluster's UUID, the id, the roles and the expiry, keyed by the secret. So
    /// an attacker who can only write the file of records can't prolong a token or widen its roles.
    proof: [u8; 32],
}

/// All valid tokens.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TokenRecords {
    records: Vec<TokenRecord>,
}

impl TokenRecords {
    /// Makes a token and records it. The caller stores the records before it discloses the token.
    ///
    /// # Errors
    /// [`MAX_TOKENS`] tokens are valid; the parameters have no address, too many, no role or no
    /// use.
    pub fn issue(
        &mut self,
        authority: &Authority,
        parameters: TokenParameters,
        now: i64,
    ) -> Result<JoinToken> {
        self.purge(now);
        if self.records.len() >= MAX_TOKENS {
            return Err(Error::TooManyTokens(MAX_TOKENS));
        }
        if parameters.addresses.is_empty() || parameters.addresses.len() > MAX_TOKEN_ADDRESSES {
            return Err(Error::token(format!("it would have {} addresses", parameters.addresses.len())));
        }
        if parameters.roles.is_empty() || parameters.uses == 0 || parameters.expires <= now {
            return Err(Error::token("no member could join with it"));
        }
        let token = JoinToken {
            cluster: authority.cluster().to_string(),
            addresses: parameters.addresses,
            authority: authority.certificate().fingerprint(),
            id: self.unused_id()?,
            secret: TokenSecret::random()?,
            expires: parameters.expires,
            roles: parameters.roles,
        };
        let mut record = TokenRecord {
            id: token.id,
            roles: token.roles,
            expires: token.expires,
            uses_left: parameters.uses,
            proof: [0; 32],
        };
        let tag = hmac::sign(&proof_key(&token.secret), &record.proof_input(authority.cluster()));
        record.proof = tag.as_ref().try_into().expect("HMAC-SHA256 has 32 bytes");
        self.records.push(record);
        Ok(token)
    }

    /// Redeems one use of a token. The caller stores the records before it hands out a certificate,
    /// so that a crash in between may lose a use but never allows it twice.
    ///
    /// # Errors
    /// A wrong secret and an unknown token have the same error. No use is consumed then.
    pub fn redeem(
        &mut self,
        cluster: &str,
        id: u64,
        secret: &TokenSecret,
        wanted: MemberKind,
        now: i64,
    ) -> Result<()> {
        let at = self.records.iter().position(|record| record.id == id).ok_or(Error::UnknownToken)?;
        let record = &mut self.records[at];
        // In constant time. The other checks are only made for bearers of the secret.
        hmac::verify(&proof_key(secret), &record.proof_input(cluster), &record.proof)
            .map_err(|_| Error::UnknownToken)?;
        if record.expires <= now {
            return Err(Error::ExpiredToken);
        }
        if !record.roles.has(wanted) {
            return Err(Error::TokenRole { wanted: wanted.name() });
        }
        record.uses_left = record.uses_left.checked_sub(1).ok_or(Error::UnknownToken)?;
        if record.uses_left == 0 {
            self.records.remove(at);
        }
        Ok(())
    }

    /// Valid tokens, and those that expired since the last one was issued.
    pub fn list(&self) -> &[TokenRecord] {
        &self.records
    }

    /// Removes a token; returns whether it existed.
    pub fn revoke(&mut self, id: u64) -> bool {
        let before = self.records.len();
        self.records.retain(|record| record.id != id);
        self.records.len() < before
    }

    /// Removes expired tokens.
    pub fn purge(&mut self, now: i64) {
        self.records.retain(|record| record.expires > now);
    }

    /// Reads a file of records; returns no records if it doesn't exist.
    pub fn load(path: &Path) -> Result<TokenRecords> {
        match files::read_private(path) {
            Ok(text) => TokenRecords::parse(&text).map_err(|cause| Error::damaged(path, cause)),
            Err(Error::Io { cause, .. }) if cause.kind() == std::io::ErrorKind::NotFound => {
                Ok(TokenRecords::default())
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the file of records.
    pub fn store(&self, path: &Path) -> Result<()> {
        files::write_private(path, &self.render())
    }

    /// A random unused id.
    fn unused_id(&self) -> Result<u64> {
        let random = SystemRandom::new();
        loop {
            let mut bytes = [0; 8];
            random.fill(&mut bytes)?;
            let id = u64::from_le_bytes(bytes);
            if self.records.iter().all(|record| record.id != id) {
                return Ok(id);
            }
        }
    }

    pub(crate) fn render(&self) -> String {
        use std::fmt::Write;
        let mut text = format!("# Join tokens in force. The secrets are not here.\nformat = {FORMAT}\n");
        for record in &self.records {
            let roles: Vec<String> = record.roles.iter().map(|kind| format!("{:?}", kind.name())).collect();
            write!(
                text,
                "\n[[token]]\nid = \"{:016x}\"\nroles = [{}]\nexpires_unix_s = {}\nuses_left = {}\nproof = \"{}\"\n",
                record.id,
                roles.join(", "),
                record.expires,
                record.uses_left,
                crate::hex::encode(&record.proof)
            )
            .expect("writing to a string can't fail");
        }
        text
    }

    pub(crate) fn parse(text: &str) -> Result<TokenRecords, String> {
        let table: toml::Table = toml::from_str(text).map_err(|e| e.message().to_string())?;
        match table.get("format").and_then(toml::Value::as_integer) {
            Some(FORMAT) => {}
            other => return Err(format!("its format is {other:?}, not {FORMAT}")),
        }
        let list = table.get("token").and_then(toml::Value::as_array).map_or(&[][..], Vec::as_slice);
        if list.len() > MAX_TOKENS {
            return Err(format!("it has more than {MAX_TOKENS} tokens"));
        }
        let records: Option<Vec<_>> = list.iter().map(TokenRecord::from_toml).collect();
        Ok(TokenRecords { records: records.ok_or("a token lacks a field, or has a wrong one")? })
    }
}

impl TokenRecord {
    /// The bytes that the proof covers: fields of fixed size, then the UUID.
    fn proof_input(&self, cluster: &str) -> Vec<u8> {
        let mut bytes = b"weft join token 1\0".to_vec();
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(self.expires.to_le_bytes());
        bytes.push(self.roles.bits());
        bytes.extend(cluster.as_bytes());
        bytes
    }

    fn from_toml(value: &toml::Value) -> Option<TokenRecord> {
        let roles: Option<MemberKinds> = value
            .get("roles")?
            .as_array()?
            .iter()
            .map(|role| MemberKind::from_name(role.as_str()?))
            .collect();
        Some(TokenRecord {
            id: u64::from_str_radix(value.get("id")?.as_str()?, 16).ok()?,
            roles: roles?,
            expires: value.get("expires_unix_s")?.as_integer()?,
            uses_left: u32::try_from(value.get("uses_left")?.as_integer()?).ok()?,
            proof: crate::hex::decode(value.get("proof")?.as_str()?)?,
        })
    }
}

fn proof_key(secret: &TokenSecret) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes())
}
