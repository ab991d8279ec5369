//! secp256k1 arithmetic for scanning silent payments, one module per instruction set.
