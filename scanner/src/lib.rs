//! BIP352 silent payments: keys, labels, addresses, eligibility, tweaks, and the scan engine.
