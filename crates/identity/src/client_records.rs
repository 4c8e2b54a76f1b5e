//! The clients that management has issued certificates to, and those whose certificates it has
//! revoked.
//!
//! Each certificate of a client has an issue number, larger than all before it. A revocation
//! refuses certificates of a name up to an issue number, so that the name can be reused. Numbers
//! are at least the time of day in seconds. So if the records are restored from an older copy, a
//! revocation still covers certificates that are missing from it.

use crate::authority::Validity;
use crate::error::{Error, Result};
use crate::files;
use crate::identity::Identity;
use crate::{
    CLOCK_SKEW_S, EXPIRED_RETENTION_S, EXPIRY_WARNING_S, MAX_CLIENTS, MAX_REVOKED, RENEWAL_FRACTION,
};
use std::path::Path;
use types::{RevokedClient, is_client_name};

/// Format of the file.
const FORMAT: i64 = 1;

/// Text before and after the checksum, which covers the rest of the file.
const SUM_BEGIN: &str = "checksum = \"";
const SUM_END: &str = "\"\n";

/// Largest number and time in the file; a sum of several can't overflow.
const MAX_INTEGER: i64 = 1 << 53;

/// Limits that an administrator sets for a client's certificates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CertificateTerms {
    /// No certificate is valid beyond this time, Unix seconds. `None`: they are renewed without
    /// limit.
    pub end: Option<i64>,
    /// Longest validity of each certificate, seconds.
    pub validity_s: i64,
}

/// Permission to make a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CertificateIssue {
    /// The certificate's issue number.
    pub number: u64,
    /// The certificate's validity period.
    pub validity: Validity,
}

/// Record of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientRecord {
    /// Its name.
    pub name: String,
    /// When it was added, Unix seconds.
    pub added: i64,
    /// The limits set then.
    pub terms: CertificateTerms,
    /// The issue number of its last certificate.
    pub number: u64,
    /// When that certificate expires, Unix seconds.
    pub expires: i64,
    /// Certificates up to this issue number are refused; 0: none is revoked.
    pub revoked_up_to: u64,
    /// When the last of those expires, Unix seconds.
    pub revoked_ends: i64,
}

/// Status of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum ClientStatus {
    Valid,
    ExpiresSoon,
    Expired,
    Revoked,
}

/// All client records, by name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientRecords {
    records: Vec<ClientRecord>,
    /// The last issue number used.
    last: u64,
}

/// Whether administrators should be warned that a certificate with this lifetime expires soon.
pub fn expires_soon(expires: i64, lifetime_s: i64, now: i64) -> bool {
    expires - now < EXPIRY_WARNING_S.min(lifetime_s / RENEWAL_FRACTION)
}

impl ClientRecord {
    /// The client's status now.
    pub fn status(&self, now: i64) -> ClientStatus {
        // The whole period, if the administrator has set its end.
        let lifetime_s = self.terms.end.map_or(self.terms.validity_s, |end| end - self.added);
        match self.expires {
            _ if self.is_revoked() => ClientStatus::Revoked,
            expires if expires <= now => ClientStatus::Expired,
            expires if expires_soon(expires, lifetime_s, now) && !self.is_renewed_later(now) => {
                ClientStatus::ExpiresSoon
            }
            _ => ClientStatus::Valid,
        }
    }

    /// Whether all certificates of the client are refused.
    pub fn is_revoked(&self) -> bool {
        self.number <= self.revoked_up_to
    }

    /// Whether the client's certificate isn't due for renewal yet, and a new one will last longer.
    fn is_renewed_later(&self, now: i64) -> bool {
        self.terms.end.is_none_or(|end| end > self.expires)
            && self.expires - now > self.terms.validity_s / RENEWAL_FRACTION
    }

    fn validity(&self, now: i64) -> Validity {
        let until = now.saturating_add(self.terms.validity_s);
        Validity { from: now - CLOCK_SKEW_S, until: self.terms.end.map_or(until, |end| until.min(end)) }
    }
}

impl ClientRecords {
    /// Records a new client. The caller stores the records before it hands out a certificate.
    ///
    /// # Errors
    /// A bad name; one with a valid certificate; an end in the past; [`MAX_CLIENTS`] clients are
    /// recorded.
    pub fn add(&mut self, name: &str, terms: CertificateTerms, now: i64) -> Result<CertificateIssue> {
        self.purge(now);
        if let Some(known) = self.find(name)
            && !known.is_revoked()
            && known.expires > now
        {
            return Err(Error::ClientExists { name: name.to_string() });
        }
        self.issue(name, terms, now)
    }

    /// As [`ClientRecords::add`], but several machines share the name. Machines that have its
    /// certificate retain it, so the terms are the same each time.
    pub fn add_shared(&mut self, name: &str, terms: CertificateTerms, now: i64) -> Result<CertificateIssue> {
        self.purge(now);
        self.issue(name, terms, now)
    }

    fn issue(&mut self, name: &str, terms: CertificateTerms, now: i64) -> Result<CertificateIssue> {
        if !is_client_name(name) {
            return Err(Error::BadClientName { name: name.to_string() });
        }
        if terms.validity_s <= 0 || terms.end.is_some_and(|end| end <= now) {
            return Err(Error::EndsInPast { name: name.to_string() });
        }
        let number = self.next_number(now);
        let known = self.find(name).cloned();
        let record = ClientRecord {
            name: name.to_string(),
            added: now,
            terms,
            number,
            expires: 0,
            revoked_up_to: known.as_ref().map_or(0, |known| known.revoked_up_to),
            revoked_ends: known.as_ref().map_or(0, |known| known.revoked_ends),
        };
        let validity = record.validity(now);
        // Machines that share the name may have a certificate that expires later.
        let shared = known.filter(|known| !known.is_revoked()).map_or(0, |known| known.expires);
        let record = ClientRecord { expires: validity.until.max(shared), ..record };
        match self.position(name) {
            Ok(at) => self.records[at] = record,
            Err(_) if self.records.len() >= MAX_CLIENTS => return Err(Error::TooManyClients(MAX_CLIENTS)),
            Err(at) => self.records.insert(at, record),
        }
        self.last = number;
        Ok(CertificateIssue { number, validity })
    }

    /// Renews a valid certificate. The caller stores the records before it hands out the new one.
    ///
    /// # Errors
    /// A client without a record, or a revoked one; a certificate that isn't due for renewal, or
    /// that expires at the end set by the administrator.
    pub fn renew(&mut self, name: &str, present: &Identity, now: i64) -> Result<CertificateIssue> {
        let number = self.next_number(now);
        let at = self.position(name).map_err(|_| Error::UnknownClient { name: name.to_string() })?;
        let record = &mut self.records[at];
        // A certificate without a number is older than all that have one.
        if record.revoked_up_to > 0 && present.issue_number().unwrap_or(0) <= record.revoked_up_to {
            return Err(Error::RevokedClient { name: name.to_string() });
        }
        let validity = record.validity(now);
        if validity.until <= present.expires {
            return Err(Error::NotRenewed { member: format!("client/{name}") });
        }
        // Each renewal is a disk write, so clients must not renew too often.
        if present.expires - now > record.terms.validity_s / 2 {
            return Err(Error::NotDueForRenewal { member: format!("client/{name}") });
        }
        record.number = number;
        record.expires = record.expires.max(validity.until);
        self.last = number;
        Ok(CertificateIssue { number, validity })
    }

    /// Revokes every certificate of a client that was issued until now.
    ///
    /// # Errors
    /// A name without a record; [`MAX_REVOKED`] clients are revoked whose certificates haven't
    /// expired.
    pub fn revoke(&mut self, name: &str, now: i64) -> Result<()> {
        self.purge(now);
        let at = self.position(name).map_err(|_| Error::UnknownClient { name: name.to_string() })?;
        let is_known = self.records[at].revoked_up_to > 0;
        if !is_known && self.revoked().len() >= MAX_REVOKED {
            return Err(Error::TooManyRevoked(MAX_REVOKED));
        }
        // Higher than all recorded numbers, in case the records are an old copy.
        let number = self.next_number(now);
        self.last = number;
        let record = &mut self.records[at];
        // The same holds for expiry: a certificate issued until now expires by this time.
        let latest = record.validity(now).until;
        record.revoked_up_to = number;
        record.revoked_ends = record.revoked_ends.max(record.expires).max(latest);
        Ok(())
    }

    /// The revocations that servers must enforce, by name.
    pub fn revoked(&self) -> Vec<RevokedClient> {
        let revoked = self.records.iter().filter(|record| record.revoked_up_to > 0);
        revoked
            .map(|record| RevokedClient { name: record.name.clone(), until: record.revoked_up_to })
            .collect()
    }

    /// All records, by name.
    pub fn list(&self) -> &[ClientRecord] {
        &self.records
    }

    /// Drops revocations whose certificates have expired, and clients that are revoked entirely or
    /// whose certificate expired long ago. Returns whether anything changed.
    pub fn purge(&mut self, now: i64) -> bool {
        let (before, mut is_changed) = (self.records.len(), false);
        self.records.retain(|record| match record.is_revoked() {
            true => record.revoked_ends + CLOCK_SKEW_S > now,
            false => record.expires + EXPIRED_RETENTION_S > now,
        });
        for record in &mut self.records {
            if record.revoked_up_to > 0 && record.revoked_ends + CLOCK_SKEW_S <= now {
                (record.revoked_up_to, record.revoked_ends) = (0, 0);
                is_changed = true;
            }
        }
        is_changed || self.records.len() < before
    }

    fn find(&self, name: &str) -> Option<&ClientRecord> {
        self.position(name).ok().map(|at| &self.records[at])
    }

    fn position(&self, name: &str) -> std::result::Result<usize, usize> {
        self.records.binary_search_by(|record| record.name.as_str().cmp(name))
    }

    fn next_number(&self, now: i64) -> u64 {
        (self.last + 1).max(u64::try_from(now).unwrap_or(0))
    }

    /// Reads a file of records; returns no records if it doesn't exist.
    pub fn load(path: &Path) -> Result<ClientRecords> {
        match files::read_private(path) {
            Ok(text) => ClientRecords::parse(&text).map_err(|cause| Error::damaged(path, cause)),
            Err(Error::Io { cause, .. }) if cause.kind() == std::io::ErrorKind::NotFound => {
                Ok(ClientRecords::default())
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the file of records.
    pub fn store(&self, path: &Path) -> Result<()> {
        files::write_private(path, &self.render())
    }

    pub(crate) fn render(&self) -> String {
        use std::fmt::Write;
        let mut text = format!("last = {}\n", self.last);
        for record in &self.records {
            let ClientRecord { name, added, terms, number, expires, revoked_up_to: revoked, revoked_ends } =
                record;
            let end = terms.end.map_or_else(String::new, |end| format!("end_unix_s = {end}\n"));
            write!(
                text,
                "\n[[client]]\nname = {name:?}\nadded_unix_s = {added}\nvalidity_s = {}\n{end}\
                 number = {number}\nexpires_unix_s = {expires}\n",
                terms.validity_s
            )
            .expect("writing to a string can't fail");
            if *revoked > 0 {
                write!(text, "revoked = {revoked}\nrevoked_ends_unix_s = {revoked_ends}\n")
                    .expect("writing to a string can't fail");
            }
        }
        // A lost line could be a lost revocation.
        let sum = types::crc32c(text.as_bytes());
        format!(
            "# Clients with certificates (weft client list). Revocations are here: keep this file.\n\
             format = {FORMAT}\n{SUM_BEGIN}{sum:08x}{SUM_END}{text}"
        )
    }

    pub(crate) fn parse(text: &str) -> std::result::Result<ClientRecords, String> {
        let table: toml::Table = toml::from_str(text).map_err(|e| e.message().to_string())?;
        match table.get("format").and_then(toml::Value::as_integer) {
            Some(FORMAT) => {}
            other => return Err(format!("its format is {other:?}, not {FORMAT}")),
        }
        let (_, summed) = text.split_once(SUM_BEGIN).ok_or("its checksum is missing")?;
        let (sum, body) = summed.split_once(SUM_END).ok_or("its checksum is missing")?;
        if u32::from_str_radix(sum, 16) != Ok(types::crc32c(body.as_bytes())) {
            return Err("its checksum doesn't match".into());
        }
        let last = table.get("last").and_then(toml::Value::as_integer);
        let last = last.filter(|last| *last <= MAX_INTEGER).and_then(|last| u64::try_from(last).ok());
        let last = last.ok_or("its last number is missing")?;
        let list = table.get("client").and_then(toml::Value::as_array).map_or(&[][..], Vec::as_slice);
        if list.len() > MAX_CLIENTS {
            return Err(format!("it has more than {MAX_CLIENTS} clients"));
        }
        let records: Option<Vec<_>> = list.iter().map(ClientRecord::from_toml).collect();
        let records = records.ok_or("a client lacks a field, or has a wrong one")?;
        if !records.is_sorted_by(|a, b| a.name < b.name) {
            return Err("its clients are not in order".into());
        }
        if records.iter().any(|record| record.number.max(record.revoked_up_to) > last) {
            return Err("a number is above the last one".into());
        }
        Ok(ClientRecords { records, last })
    }
}

impl ClientRecord {
    fn from_toml(value: &toml::Value) -> Option<ClientRecord> {
        let integer = |key: &str| match value.get(key) {
            None => Some(None),
            Some(value) => value.as_integer().filter(|value| (0..=MAX_INTEGER).contains(value)).map(Some),
        };
        let number = |key: &str| u64::try_from(integer(key)?.unwrap_or(0)).ok();
        Some(ClientRecord {
            name: value.get("name")?.as_str().filter(|name| is_client_name(name))?.to_string(),
            added: integer("added_unix_s")??,
            terms: CertificateTerms { end: integer("end_unix_s")?, validity_s: integer("validity_s")?? },
            number: number("number")?,
            expires: integer("expires_unix_s")??,
            revoked_up_to: number("revoked")?,
            revoked_ends: integer("revoked_ends_unix_s")?.unwrap_or(0),
        })
    }
}
