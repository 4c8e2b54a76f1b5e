//! Join tokens: what an administrator carries to a machine that is to become a member.

use crate::authority::Fingerprint;
use crate::error::{Error, Result};
use crate::role::MemberKinds;
use crate::{MAX_TOKEN_ADDRESSES, MAX_TOKEN_CHARS};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use prost::Message;
use std::fmt;
use std::str::FromStr;

/// What every token starts with, so that people and programs that look for leaked secrets know one
/// when they see it.
const PREFIX: &str = "weft-join-";

/// Form of the token's content.
const VERSION: u32 = 1;

/// Bytes of the secret: nobody guesses 128 bits in the lifetime of a token.
const SECRET_BYTES: usize = 16;

/// Bytes of the checksum at the end, which finds tokens that weren't copied whole.
const SUM_BYTES: usize = 4;

/// The part of a token that management checks. Its bytes are never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenSecret([u8; SECRET_BYTES]);

impl TokenSecret {
    /// A new one.
    pub(crate) fn random() -> Result<TokenSecret> {
        let mut bytes = [0; SECRET_BYTES];
        ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes)?;
        Ok(TokenSecret(bytes))
    }

    /// Takes it out of a message.
    pub fn from_bytes(bytes: &[u8]) -> Result<TokenSecret> {
        let bytes = bytes.try_into().map_err(|_| Error::token("its secret has a wrong length"))?;
        Ok(TokenSecret(bytes))
    }

    /// Puts it into a message, which must be encrypted.
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
/// What it says of expiry and roles is for the joining side's messages; management goes by its own
/// record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JoinToken {
    /// UUID of the cluster.
    pub cluster: String,
    /// Where management is: `host:port`, in order of preference.
    pub addresses: Vec<String>,
    /// The authority's certificate, by which the joining side knows management.
    pub authority: Fingerprint,
    /// Under which management has noted the token. Not secret: lists and logs may show it.
    pub id: u64,
    /// What proves that the bearer was given the token.
    pub secret: TokenSecret,
    /// When it ends, Unix seconds.
    pub expires: i64,
    /// What its bearer may become.
    pub roles: MemberKinds,
}

/// The token's content as it is encoded.
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

    /// Reads a token; white space around it and line breaks within, which terminals and mails add,
    /// are passed over.
    fn from_str(text: &str) -> Result<JoinToken> {
        if text.len() > MAX_TOKEN_CHARS {
            return Err(Error::token("it is too long"));
        }
        let text: String = text.split_ascii_whitespace().collect();
        let body = text
            .strip_prefix(PREFIX)
            .ok_or_else(|| Error::token(format!("it doesn't start with {PREFIX}")))?;
        let bytes = URL_SAFE_NO_PAD.decode(body).map_err(|_| Error::token("it was not copied whole"))?;
        let (bytes, sum) =
            bytes.split_last_chunk::<SUM_BYTES>().ok_or_else(|| Error::token("it was not copied whole"))?;
        if sum_of(bytes) != *sum {
            return Err(Error::token("it was not copied whole"));
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
