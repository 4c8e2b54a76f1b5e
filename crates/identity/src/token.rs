//! Join tokens, with which a machine joins the cluster.

use crate::authority::Fingerprint;
use crate::error::{Error, Result};
use crate::role::MemberKinds;
use crate::{MAX_TOKEN_ADDRESSES, MAX_TOKEN_CHARS};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use prost::Message;
use std::fmt;
use std::str::FromStr;

/// Prefix of every token, by which people and secret scanners recognize one.
const PREFIX: &str = "weft-join-";

/// Version of the token's content.
const VERSION: u32 = 1;

/// Bytes of the secret: 128 bits can't be guessed in the lifetime of a token.
const SECRET_BYTES: usize = 16;

/// Bytes of the checksum at the end, which detects incompletely copied tokens.
const SUM_BYTES: usize = 4;

/// The part of a token that management verifies. Its bytes are never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenSecret([u8; SECRET_BYTES]);

impl TokenSecret {
    /// Makes a random secret.
    pub(crate) fn random() -> Result<TokenSecret> {
        let mut bytes = [0; SECRET_BYTES];
        ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes)?;
        Ok(TokenSecret(bytes))
    }

    /// Takes a secret from a message.
    pub fn from_bytes(bytes: &[u8]) -> Result<TokenSecret> {
        let bytes = bytes.try_into().map_err(|_| Error::token("its secret has a wrong length"))?;
        Ok(TokenSecret(bytes))
    }

    /// The secret's bytes, for a message that must be encrypted.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSecret(..)")
    }
}

/// A token. Its text (`Display`, `FromStr`) is `weft-join-` and base64url of a protobuf message and
/// a CRC32C.
///
/// Its expiry and roles are for messages of the joining side; management enforces its own record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JoinToken {
    /// UUID of the cluster.
    pub cluster: String,
    /// Addresses of management: `host:port`, in order of preference.
    pub addresses: Vec<String>,
    /// Fingerprint of the authority's certificate, by which the joining side authenticates
    /// management.
    pub authority: Fingerprint,
    /// Id of management's record of the token. Not secret: lists and logs may show it.
    pub id: u64,
    /// Proves that the bearer was given the token.
    pub secret: TokenSecret,
    /// When it expires, Unix seconds.
    pub expires: i64,
    /// Kinds of members that its bearer may become.
    pub roles: MemberKinds,
}

/// The token's encoded content.
#[derive(Clone, PartialEq, Message)]
struct Content {
    #[prost(uint32, tag = "1")]
    version: u32,
    #[prost(string, tag = "2")]
    cluster: String,
    #[prost(string, repeated, tag = "3")]
    addresses: Vec<String>,
    #[prost(bytes = "vec", tag = "4")]
    authority: Vec<u8>,
    #[prost(fixed64, tag = "5")]
    id: u64,
    #[prost(bytes = "vec", tag = "6")]
    secret: Vec<u8>,
    #[prost(int64, tag = "7")]
    expires: i64,
    #[prost(uint32, tag = "8")]
    roles: u32,
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let content = Content {
            version: VERSION,
            cluster: self.cluster.clone(),
            addresses: self.addresses.clone(),
            authority: self.authority.0.to_vec(),
            id: self.id,
            secret: self.secret.0.to_vec(),
            expires: self.expires,
            roles: self.roles.bits().into(),
        };
        f.write_str(&text_of(&content.encode_to_vec()))
    }
}

impl FromStr for JoinToken {
    type Err = Error;

    /// Parses a token; ignores white space around it and line breaks within, which terminals and
    /// mails add.
    fn from_str(text: &str) -> Result<JoinToken> {
        if text.len() > MAX_TOKEN_CHARS {
            return Err(Error::token("it is too long"));
        }
        let text: String = text.split_ascii_whitespace().collect();
        let body = text
            .strip_prefix(PREFIX)
            .ok_or_else(|| Error::token(format!("it doesn't start with {PREFIX}")))?;
        let bytes = URL_SAFE_NO_PAD.decode(body).map_err(|_| Error::token("it was not copied completely"))?;
        let (bytes, sum) = bytes
            .split_last_chunk::<SUM_BYTES>()
            .ok_or_else(|| Error::token("it was not copied completely"))?;
        if sum_of(bytes) != *sum {
            return Err(Error::token("it was not copied completely"));
        }
        let content = Content::decode(bytes).map_err(|_| Error::token("its content can't be read"))?;
        JoinToken::from_content(content)
    }
}

impl JoinToken {
    fn from_content(content: Content) -> Result<JoinToken> {
        if content.version != VERSION {
            return Err(Error::token(format!("it has version {}, not {VERSION}", content.version)));
        }
        if content.addresses.is_empty() || content.addresses.len() > MAX_TOKEN_ADDRESSES {
            return Err(Error::token(format!("it has {} addresses", content.addresses.len())));
        }
        let authority = content.authority.as_slice().try_into();
        Ok(JoinToken {
            cluster: content.cluster,
            addresses: content.addresses,
            authority: Fingerprint(
                authority.map_err(|_| Error::token("its fingerprint has a wrong length"))?,
            ),
            id: content.id,
            secret: TokenSecret::from_bytes(&content.secret)?,
            expires: content.expires,
            roles: MemberKinds::from_bits(content.roles)
                .ok_or_else(|| Error::token("its roles are unknown"))?,
        })
    }
}

/// The text of a token with this content.
pub(crate) fn text_of(content: &[u8]) -> String {
    let summed = [content, &sum_of(content)].concat();
    format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(summed))
}

fn sum_of(bytes: &[u8]) -> [u8; SUM_BYTES] {
    types::crc32c(bytes).to_le_bytes()
}
