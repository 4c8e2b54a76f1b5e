//! The keys that sign and verify capabilities.

use crate::capability::{Capability, CapabilityRefusal, Grant, MAC_BYTES, mac_input};
use crate::error::{Error, Result};
use crate::{MAX_CAPABILITY_KEYS, VERIFIED_CAPABILITIES, files, hex};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;
use std::path::Path;
use subtle::ConstantTimeEq;

/// Length of a key, bytes.
const KEY_BYTES: usize = 32;

/// Format of a rendered key ring.
const FORMAT: i64 = 1;

/// One key of the cluster.
#[derive(Clone)]
pub struct CapabilityKey {
    id: u32,
    secret: [u8; KEY_BYTES],
    // Both hash states after the padded key, so that a MAC costs two blocks of SHA-256.
    prepared: hmac::Key,
}

impl fmt::Debug for CapabilityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CapabilityKey({})", self.id)
    }
}

impl CapabilityKey {
    /// Makes a key from its secret.
    pub fn new(id: u32, secret: [u8; KEY_BYTES]) -> CapabilityKey {
        CapabilityKey { id, secret, prepared: hmac::Key::new(hmac::HMAC_SHA256, &secret) }
    }

    /// Makes a random key.
    pub fn random(id: u32) -> Result<CapabilityKey> {
        let mut secret = [0; KEY_BYTES];
        SystemRandom::new().fill(&mut secret)?;
        Ok(CapabilityKey::new(id, secret))
    }

    /// The key's id.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Signs a grant.
    pub fn sign(&self, grant: &Grant) -> Capability {
        let signed = grant.signed_bytes(self.id);
        Capability::new(signed, self.mac(mac_input(&signed)))
    }

    /// Verifies a capability and returns its grant. Doesn't check the expiry.
    pub fn verify(&self, capability: &Capability) -> Result<Grant, CapabilityRefusal> {
        if capability.key_id() != self.id {
            return Err(CapabilityRefusal::UnknownKey(capability.key_id()));
        }
        let genuine = self.mac(mac_input(&capability.signed())).ct_eq(capability.mac());
        if bool::from(genuine) { capability.claimed_grant() } else { Err(CapabilityRefusal::Forged) }
    }

    fn mac(&self, signed: &[u8]) -> [u8; MAC_BYTES] {
        let tag = hmac::sign(&self.prepared, signed);
        tag.as_ref()[..MAC_BYTES].try_into().expect("a tag of SHA-256 is longer")
    }
}

/// The cluster's keys: one signs, all of them verify.
///
/// A rotation has two steps, so that no service receives a capability whose key it doesn't have:
/// [`CapabilityKeys::stage`] and distribute, then [`CapabilityKeys::promote`] and distribute.
#[derive(Clone, Debug)]
pub struct CapabilityKeys {
    keys: Vec<CapabilityKey>,
    signing: usize,
}

impl CapabilityKeys {
    /// Makes the keys of a new cluster.
    pub fn create() -> Result<CapabilityKeys> {
        Ok(CapabilityKeys { keys: vec![CapabilityKey::random(1)?], signing: 0 })
    }

    /// Adds a key that verifies but doesn't sign yet, and drops keys older than the last
    /// [`MAX_CAPABILITY_KEYS`]. Capabilities of a dropped key become invalid; none does early if
    /// rotations are farther apart than the validity of capabilities. A key staged before is
    /// promoted first.
    pub fn stage(&mut self) -> Result<()> {
        self.promote();
        let last = self.keys.last().map_or(0, |key| key.id);
        self.keys.push(CapabilityKey::random(last.wrapping_add(1))?);
        let surplus = self.keys.len().saturating_sub(MAX_CAPABILITY_KEYS);
        self.keys.drain(..surplus);
        self.signing = self.keys.len() - 2;
        Ok(())
    }

    /// Signs with the newest key from now on.
    pub fn promote(&mut self) {
        self.signing = self.keys.len() - 1;
    }

    /// Whether the newest key doesn't sign yet.
    pub fn is_staged(&self) -> bool {
        self.signing + 1 < self.keys.len()
    }

    /// Signs a grant with the signing key.
    pub fn sign(&self, grant: &Grant) -> Capability {
        self.keys[self.signing].sign(grant)
    }

    /// Verifies a capability, including its expiry, and returns its grant.
    pub fn verify(&self, capability: &Capability, now: u64) -> Result<Grant, CapabilityRefusal> {
        let id = capability.key_id();
        let key = self.keys.iter().rev().find(|key| key.id == id).ok_or(CapabilityRefusal::UnknownKey(id))?;
        let grant = key.verify(capability)?;
        if grant.expires <= now { Err(CapabilityRefusal::Expired) } else { Ok(grant) }
    }

    /// The ids of all keys, oldest first.
    pub fn ids(&self) -> Vec<u32> {
        self.keys.iter().map(|key| key.id).collect()
    }

    /// The keys as text, with their secrets: for files of mode 0600 and encrypted messages to
    /// nodes.
    pub fn render(&self) -> String {
        let mut text = format!(
            "# Keys of capabilities. All verify, one signs.\nformat = {FORMAT}\nsigning = {}\n",
            self.keys[self.signing].id
        );
        for key in &self.keys {
            text.push_str(&format!(
                "\n[[key]]\nid = {}\nsecret = \"{}\"\n",
                key.id,
                hex::encode(&key.secret)
            ));
        }
        text
    }

    /// Parses such text. Error messages don't quote it.
    pub fn parse(text: &str) -> Result<CapabilityKeys, String> {
        let table: toml::Table = toml::from_str(text).map_err(|_| "it can't be parsed".to_string())?;
        match table.get("format").and_then(toml::Value::as_integer) {
            Some(FORMAT) => {}
            other => return Err(format!("its format is {other:?}, not {FORMAT}")),
        }
        let list = table.get("key").and_then(toml::Value::as_array).map_or(&[][..], Vec::as_slice);
        if list.is_empty() || list.len() > MAX_CAPABILITY_KEYS {
            return Err(format!("it has {} keys; 1 to {MAX_CAPABILITY_KEYS} are possible", list.len()));
        }
        let key = |value: &toml::Value| {
            let id = u32::try_from(value.get("id")?.as_integer()?).ok()?;
            Some(CapabilityKey::new(id, hex::decode(value.get("secret")?.as_str()?)?))
        };
        let keys: Option<Vec<_>> = list.iter().map(key).collect();
        let keys = keys.ok_or("a key lacks a field, or has a wrong one")?;
        let signing = table.get("signing").and_then(toml::Value::as_integer);
        let signing = keys.iter().position(|key| Some(i64::from(key.id)) == signing);
        Ok(CapabilityKeys { keys, signing: signing.ok_or("the signing key is not among them")? })
    }

    /// Reads the keys from a file.
    pub fn load(path: &Path) -> Result<CapabilityKeys> {
        CapabilityKeys::parse(&files::read_private(path)?).map_err(|cause| Error::damaged(path, cause))
    }

    /// Writes the keys to a file.
    pub fn store(&self, path: &Path) -> Result<()> {
        files::write_private(path, &self.render())
    }
}

/// Capabilities that this core has verified before, in a direct-mapped cache: a lookup is one
/// comparison. After a collision the capability is verified again.
pub struct VerifiedCache {
    slots: Box<[Option<(Capability, Grant)>]>,
}

impl Default for VerifiedCache {
    fn default() -> VerifiedCache {
        VerifiedCache { slots: vec![None; VERIFIED_CAPABILITIES].into_boxed_slice() }
    }
}

impl VerifiedCache {
    /// As [`CapabilityKeys::verify`].
    pub fn verify(
        &mut self,
        keys: &CapabilityKeys,
        capability: &Capability,
        now: u64,
    ) -> Result<Grant, CapabilityRefusal> {
        let slot = &mut self.slots[slot_of(capability)];
        if let Some((known, grant)) = slot
            && known.signed() == capability.signed()
            && bool::from(known.mac().ct_eq(capability.mac()))
        {
            return if grant.expires <= now { Err(CapabilityRefusal::Expired) } else { Ok(*grant) };
        }
        let grant = keys.verify(capability, now)?;
        *slot = Some((*capability, grant));
        Ok(grant)
    }

    /// Clears the cache: to be called when the keys change.
    pub fn clear(&mut self) {
        self.slots.fill(None);
    }
}

/// Slot of a capability, from its MAC, which is as good as random. A client that sends forged ones
/// only hits slots and is never cached.
fn slot_of(capability: &Capability) -> usize {
    let bytes = capability.mac().first_chunk().expect("a code has 16 bytes");
    u64::from_le_bytes(*bytes) as usize % VERIFIED_CAPABILITIES
}
