//! Notifications about scripts, outputs and the tip.

use super::lock;
use super::methods::{outpoint_json, status_json};
use super::rpc;
use super::session::{Session, Told};
use super::version::Version;
use super::{header_object, hub::Pending};
use crate::node::ScriptHash;
use bitcoin::{BlockHash, OutPoint};

/// A notification, and what it is about.
#[derive(Debug)]
pub(super) struct Note {
    subject: Subject,
    pub(super) text: String,
}

#[derive(Debug)]
enum Subject {
    Script(ScriptHash, Option<[u8; 32]>),
    Outpoint(OutPoint, String),
    Tip(BlockHash),
}

impl Session {
    /// What to tell the client of what happened: only what is different from what it was told last. Blocks.
    pub(super) fn notes(&self, pending: &Pending) -> Vec<Note> {
        let mut notes = Vec::new();
        self.script_notes(pending, &mut notes);
        self.outpoint_notes(pending, &mut notes);
        if pending.tip || pending.all {
            self.tip_note(&mut notes);
        }
        notes
    }

    fn script_notes(&self, pending: &Pending, notes: &mut Vec<Note>) {
        let scripts: Vec<ScriptHash> = if pending.all {
            lock(&self.state).scripts.keys().copied().collect()
        } else {
            pending.touched.iter().copied().collect()
        };
        for script in scripts {
            match lock(&self.state).scripts.get_mut(&script) {
                None => continue,
                Some(Told::Asking { again }) => {
                    *again = true;
                    continue;
                }
                Some(Told::Status(_)) => {}
            }
            let status = match self.server.node.history(script) {
                Ok(history) => history.status(),
                Err(error) => {
                    // Told with the next event, if it can be told then.
                    tracing::debug!("a subscriber can't be told of a script: {error}");
                    self.inbox.put_back(script);
                    continue;
                }
            };
            let mut state = lock(&self.state);
            let version = state.version.unwrap_or(Version::OLDEST);
            match state.scripts.get_mut(&script) {
                Some(Told::Status(told)) if *told != status => *told = status,
                Some(Told::Asking { again }) => {
                    *again = true;
                    continue;
                }
                _ => continue,
            }
            let method = if version < Version::V1_7 {
                "blockchain.scripthash.subscribe"
            } else {
                "blockchain.scriptpubkey.subscribe"
            };
            let text = rpc::notification(method, &format!("[\"{script}\",{}]", status_json(status)));
            notes.push(Note { subject: Subject::Script(script, status), text });
        }
    }

    fn outpoint_notes(&self, pending: &Pending, notes: &mut Vec<Note>) {
        let outpoints: Vec<OutPoint> = lock(&self.state)
            .outpoints
            .iter()
            .filter(|(_, watched)| pending.all || pending.touched.contains(&watched.script))
            .map(|(outpoint, _)| *outpoint)
            .collect();
        for outpoint in outpoints {
            let Ok(status) = self.server.node.outpoint(outpoint) else { continue };
            let status = outpoint_json(&status);
            let mut state = lock(&self.state);
            // An empty text: the reply to the subscription is still to come, and says what is so now.
            let Some(watched) = state.outpoints.get_mut(&outpoint) else { continue };
            if watched.told.is_empty() || watched.told == status {
                continue;
            }
            watched.told.clone_from(&status);
            let OutPoint { txid, vout } = outpoint;
            let text =
                rpc::notification("blockchain.outpoint.subscribe", &format!("[\"{txid}\",{vout},{status}]"));
            notes.push(Note { subject: Subject::Outpoint(outpoint, status), text });
        }
    }

    fn tip_note(&self, notes: &mut Vec<Note>) {
        let mut state = lock(&self.state);
        let Some(told) = state.headers else { return };
        let Ok(tip) = self.server.hub.tip(&*self.server.node) else { return };
        let hash = tip.header.block_hash();
        if hash == told {
            return;
        }
        state.headers = Some(hash);
        let text = rpc::notification("blockchain.headers.subscribe", &format!("[{}]", header_object(&tip)));
        notes.push(Note { subject: Subject::Tip(hash), text });
    }

    /// Whether a notification that was made some time ago still says what the client is to know.
    pub(super) fn still_true(&self, note: &Note) -> bool {
        let state = lock(&self.state);
        match &note.subject {
            Subject::Script(script, status) => state.scripts.get(script) == Some(&Told::Status(*status)),
            Subject::Outpoint(outpoint, status) => {
                state.outpoints.get(outpoint).is_some_and(|watched| watched.told == *status)
            }
            Subject::Tip(hash) => state.headers == Some(*hash),
        }
    }
}
