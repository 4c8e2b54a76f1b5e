//! Fields of every request to a metadata service and of every answer.

use super::common::{
    AttrFields, CredentialsFields, List, MAX_LIST_ITEMS, Numbered, packed, required, unpacked,
};
use super::fields;
use super::meta_op::OpFields;
use super::meta_reply::ReplyFields;
use super::storage::CapabilityFields;
use crate::authorization::{self, AuthorizationRule};
use crate::{
    AnswerKind, Capability, DirectoryState, LeaseGrant, LeaseMode, Malformed, Message, Request, Service,
};
use crate::{MetaRequest, MetaResponse};
use bytes::Bytes;
use prost::Message as _;
use types::{InodeId, SessionId};

/// In answers of at least this many bytes, names and contents are slices of one shared copy; in
/// shorter ones they are copied. So a listing costs one allocation instead of one for each name,
/// and a single name doesn't pin a long answer's memory.
const SHARED_FROM_BYTES: usize = 2048;

#[derive(Clone, PartialEq, prost::Message)]
struct RequestFields {
    #[prost(uint64, tag = "1")]
    session: u64,
    /// Session slot in the upper half, sequence id in the lower; 0: none.
    #[prost(uint64, tag = "2")]
    number: u64,
    #[prost(message, optional, tag = "3")]
    credentials: Option<CredentialsFields>,
    #[prost(bool, tag = "4")]
    privileged: bool,
    #[prost(
        oneof = "OpFields",
        tags = "10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 48, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62"
    )]
    op: Option<OpFields>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ResponseFields {
    #[prost(message, optional, tag = "1")]
    grants: Option<List<GrantFields, MAX_LIST_ITEMS>>,
    #[prost(uint64, tag = "2")]
    recalls: u64,
    #[prost(message, optional, tag = "3")]
    capability: Option<CapabilityFields>,
    #[prost(message, optional, tag = "4")]
    directories: Option<List<DirectoryFields, MAX_LIST_ITEMS>>,
    // Grants of `Permissions`: peers that don't know that mode ignore them.
    #[prost(message, optional, tag = "5")]
    permissions: Option<List<PermissionsFields, MAX_LIST_ITEMS>>,
    #[prost(fixed64, tag = "6")]
    verifier: u64,
    #[prost(
        oneof = "ReplyFields",
        tags = "10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 25, 26, 27, 28, 29"
    )]
    reply: Option<ReplyFields>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct GrantFields {
    #[prost(uint64, tag = "1")]
    ino: u64,
    #[prost(uint32, tag = "2")]
    mode: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PermissionsFields {
    #[prost(uint64, tag = "1")]
    ino: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct DirectoryFields {
    #[prost(message, optional, tag = "1")]
    attr: Option<AttrFields>,
    #[prost(uint64, tag = "2")]
    order: u64,
}

impl Message for MetaRequest {
    fn encode(&self, out: &mut Vec<u8>) {
        let MetaRequest { session, slot_sequence: number, credentials, privileged, op } = self;
        RequestFields {
            session: session.0,
            number: number.map_or(0, packed),
            credentials: Some((*credentials).into()),
            privileged: *privileged,
            op: Some(op.into()),
        }
        .encode_raw(out);
    }

    fn decode(bytes: &[u8]) -> Result<MetaRequest, Malformed> {
        let RequestFields { session, number, credentials, privileged, op } = fields(bytes)?;
        Ok(MetaRequest {
            session: SessionId(session),
            slot_sequence: unpacked(number),
            credentials: required(credentials, "credentials")?.into(),
            privileged,
            op: required(op, "known metadata operation")?.try_into()?,
        })
    }
}

impl Request for MetaRequest {
    const SERVICE: Service = Service::Metadata;

    fn answer_kind(&self) -> AnswerKind {
        match self.op.spec().has_no_deadline {
            true => AnswerKind::Unbounded,
            false => AnswerKind::NoPayload,
        }
    }

    fn rule(&self) -> AuthorizationRule {
        authorization::metadata(self)
    }
}

impl Message for MetaResponse {
    fn encode(&self, out: &mut Vec<u8>) {
        let MetaResponse { reply, grants, recalls, capability, directories, verifier } = self;
        let grant = |grant: &LeaseGrant| GrantFields { ino: grant.ino.0, mode: grant.mode.number() };
        let directory = |state: &DirectoryState| DirectoryFields {
            attr: Some((&state.attr).into()),
            order: state.state_number,
        };
        let (permissions, grants): (Vec<&LeaseGrant>, Vec<&LeaseGrant>) =
            grants.iter().partition(|grant| grant.mode == LeaseMode::Permissions);
        ResponseFields {
            grants: List::of(&grants, |of| grant(of)),
            permissions: List::of(&permissions, |grant| PermissionsFields { ino: grant.ino.0 }),
            recalls: *recalls,
            capability: capability.as_ref().map(CapabilityFields::from),
            directories: List::of(directories, directory),
            verifier: *verifier,
            reply: Some(reply.into()),
        }
        .encode_raw(out);
    }

    fn decode(bytes: &[u8]) -> Result<MetaResponse, Malformed> {
        let found: ResponseFields = match bytes.len() {
            0..SHARED_FROM_BYTES => fields(bytes)?,
            _ => fields(Bytes::copy_from_slice(bytes))?,
        };
        let ResponseFields { grants, permissions, recalls, capability, directories, verifier, reply } = found;
        let grant = |f: GrantFields| Ok(LeaseGrant { ino: InodeId(f.ino), mode: LeaseMode::take(f.mode)? });
        let directory = |f: DirectoryFields| {
            let attr = required(f.attr, "attributes of a directory")?.try_into()?;
            Ok(DirectoryState { attr, state_number: f.order })
        };
        let mut grants = List::take(grants, grant)?;
        let permission =
            |f: PermissionsFields| Ok(LeaseGrant { ino: InodeId(f.ino), mode: LeaseMode::Permissions });
        grants.extend(List::take(permissions, permission)?);
        Ok(MetaResponse {
            reply: required(reply, "known metadata answer")?.try_into()?,
            grants,
            recalls,
            capability: capability.as_ref().map(Capability::from),
            directories: List::take(directories, directory)?,
            verifier,
        })
    }
}
