//! How the JSON-RPC interface knows us: a cookie file or a user with a password.

use std::io::{ErrorKind, Read};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use super::SourceError;
use super::secret::Secret;

/// A cookie is `__cookie__:` and 64 hexadecimal digits; a file that is much longer is some other file.
const MAX_COOKIE_LEN: u64 = 4096;

/// Who we are to the node.
#[derive(Clone, Debug)]
pub enum Credentials {
    /// The file that a node writes when it starts and removes when it stops, `user:password` in one line.
    CookieFile(PathBuf),
    /// `rpcuser` and `rpcpassword`, or a user of `rpcauth`.
    User {
        /// Name, as in `rpcuser`.
        user: String,
        /// Password, as in `rpcpassword`.
        password: Secret,
    },
}

/// The value of the `authorization` header, renewed when the node has written a new cookie.
#[derive(Debug)]
pub(super) struct Authorization {
    credentials: Credentials,
    current: Mutex<Option<Secret>>,
}

impl Authorization {
    pub(super) fn new(credentials: Credentials) -> Self {
        Self { credentials, current: Mutex::new(None) }
    }

    /// The header to send; reads the cookie if it wasn't read yet.
    pub(super) fn header(&self) -> Result<Secret, SourceError> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(header) = &*current {
            return Ok(header.clone());
        }
        Ok(current.insert(self.load()?).clone())
    }

    /// Called after the node refused `refused`: another header to try, or `None` when there is no other.
    pub(super) fn renewed(&self, refused: &Secret) -> Result<Option<Secret>, SourceError> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have renewed it already; reading once more is cheap and needs no case of its own.
        *current = None;
        let header = self.load()?;
        *current = Some(header.clone());
        Ok((header.expose() != refused.expose()).then_some(header))
    }

    /// What a person should do when the node doesn't accept us.
    pub(super) fn advice(&self) -> String {
        match &self.credentials {
            Credentials::CookieFile(path) => format!(
                "the node doesn't accept the cookie of {}: it may belong to another node, give the right file or a user \
                 and password",
                path.display()
            ),
            Credentials::User { user, .. } => format!(
                "the node doesn't accept user {user:?} with this password: compare with rpcuser and rpcpassword, or \
                 rpcauth, of its bitcoin.conf"
            ),
        }
    }

    fn load(&self) -> Result<Secret, SourceError> {
        let pair = match &self.credentials {
            Credentials::CookieFile(path) => {
                let mut text = Zeroizing::new(String::new());
                let read = std::fs::File::open(path)
                    .and_then(|file| file.take(MAX_COOKIE_LEN).read_to_string(&mut text));
                let shown = path.display();
                read.map_err(|e| match e.kind() {
                    // The node removes the file when it stops, so that a missing one is a matter of waiting.
                    ErrorKind::NotFound => SourceError::Unavailable(format!(
                        "no cookie file {shown}: it is there while bitcoind runs; if it runs, give the right file or a \
                         user and password"
                    )),
                    ErrorKind::PermissionDenied => SourceError::Refused(format!(
                        "no permission to read the cookie file {shown}: run as the node's user, or set \
                         rpccookieperms=group in its bitcoin.conf and join its group"
                    )),
                    _ => SourceError::Refused(format!("can't read the cookie file {shown}: {e}")),
                })?;
                let pair = Zeroizing::new(text.trim().to_owned());
                if !pair.contains(':') {
                    // Also when the node is in the middle of writing it.
                    return Err(SourceError::Unavailable(format!(
                        "the cookie file {shown} doesn't hold user:password (yet)"
                    )));
                }
                pair
            }
            Credentials::User { user, password } => Zeroizing::new(format!("{user}:{}", password.expose())),
        };
        let encoded = Zeroizing::new(STANDARD.encode(pair.as_bytes()));
        Ok(Secret::new(format!("Basic {}", *encoded)))
    }
}
