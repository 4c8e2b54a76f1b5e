//! The error numbers of refusals.
//!
//! Between processes, an error is a number, a message and a hint. A [`Refusal`] has the number of
//! an errno that no system call of a file system returns. Two refusals share a number if different
//! services use them: the service that answered decides what the number means.

use crate::Service;
use types::{Errno, Error, Refusal};

/// `EREMOTE` of Linux.
const REMOTE: i32 = 66;
/// `EREMCHG` of Linux.
const REMOTE_CHANGED: i32 = 78;
/// `EKEYEXPIRED` of Linux.
const KEY_EXPIRED: i32 = 127;
/// `EKEYREVOKED` of Linux.
const KEY_REVOKED: i32 = 128;

/// The number that stands for an error between processes, and in what services store.
pub fn error_number(errno: Errno) -> i32 {
    match errno {
        Errno::Number(number) => number,
        Errno::Refusal(Refusal::RedirectToPrimary | Refusal::PartitionNotServed) => REMOTE,
        Errno::Refusal(Refusal::GroupVersionMismatch) => REMOTE_CHANGED,
        Errno::Refusal(Refusal::EndedLease | Refusal::ExpiredCapability) => KEY_EXPIRED,
        Errno::Refusal(Refusal::RevokedLeaseEpoch) => KEY_REVOKED,
    }
}

/// What the number of a service's error means.
pub fn errno_of(service: Service, number: i32) -> Errno {
    let is_storage = service == Service::Storage;
    let refusal = match number {
        REMOTE if is_storage => Refusal::RedirectToPrimary,
        REMOTE => Refusal::PartitionNotServed,
        REMOTE_CHANGED => Refusal::GroupVersionMismatch,
        KEY_EXPIRED if is_storage => Refusal::ExpiredCapability,
        KEY_EXPIRED => Refusal::EndedLease,
        KEY_REVOKED => Refusal::RevokedLeaseEpoch,
        number => return Errno::Number(number),
    };
    Errno::Refusal(refusal)
}

/// A decoded error with its meaning as the answer of a service. Decoding alone doesn't know the
/// service, and leaves the number.
pub fn error_of(service: Service, error: Error) -> Error {
    Error { errno: errno_of(service, error_number(error.errno)), ..error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;

    /// The services that use a refusal.
    fn services(refusal: Refusal) -> &'static [Service] {
        match refusal {
            Refusal::GroupVersionMismatch | Refusal::RevokedLeaseEpoch => {
                &[Service::Metadata, Service::Storage, Service::Partitions]
            }
            Refusal::RedirectToPrimary | Refusal::ExpiredCapability => &[Service::Storage],
            Refusal::PartitionNotServed | Refusal::EndedLease => &[Service::Metadata, Service::Partitions],
        }
    }

    #[test]
    fn a_refusal_arrives_as_it_was_sent() {
        for refusal in Refusal::ALL {
            let sent = Error::new(refusal, "refused").hint("repeat it");
            let mut body = Vec::new();
            sent.encode(&mut body);
            for service in services(refusal) {
                let received = Error::decode(&body).map(|error| error_of(*service, error));
                assert_eq!(received, Ok(sent.clone()), "{service:?}");
            }
        }
    }

    #[test]
    fn refusals_keep_their_numbers() {
        let numbers = Refusal::ALL.map(|refusal| error_number(refusal.into()));
        assert_eq!(numbers, [78, 66, 66, 127, 127, 128]);
    }

    #[test]
    fn other_numbers_are_errnos() {
        for number in [1, 5, 11, 95, 110, 116, 4095] {
            assert_eq!(errno_of(Service::Storage, number), Errno::Number(number));
            assert_eq!(error_number(Errno::Number(number)), number);
        }
    }
}
