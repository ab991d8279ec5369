//! The index-server specification beside BIP352: `/getinfo`, `/tweaks/:height`, `/compute-index/:height`, `/utxos/:height`.

use std::collections::HashMap;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bitcoin::hex::DisplayHex;
use serde_json::{Value, json};

use super::super::problem::Problem;
use super::super::reply::{Keep, Reply};
use super::super::web::{Shared, Web};
use crate::light::{Filter, SilentBlock};

pub(crate) fn router() -> Router<Shared> {
    Router::new()
        .route("/getinfo", get(info))
        .route("/tweaks/{height}", get(tweaks))
        .route("/compute-index/{height}", get(compute_index))
        .route("/utxos/{height}", get(utxos))
}

/// Errors as the specification has them.
struct Failure(Problem);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let body = json!({
            "error": { "code": self.0.status.as_u16(), "message": self.0.text, "details": Value::Null }
        });
        let headers = self.0.clone().into_response().headers().clone();
        let mut response = (self.0.status, axum::Json(body)).into_response();
        if let Some(retry) = headers.get(axum::http::header::RETRY_AFTER) {
            response.headers_mut().insert(axum::http::header::RETRY_AFTER, retry.clone());
        }
        response
    }
}

type Answer = Result<Reply, Failure>;

async fn info(State(web): State<Shared>) -> Answer {
    let answer = web.ask(move |web| {
        let answer = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "network": web.node.network().to_core_arg(),
            "block_height": web.blocks.heights()?.1,
            // Nothing is left out unless it is asked for.
            "dust_limit": 0,
            "filter_spent": 0,
        });
        Reply::json(&answer, Keep::Never)
    });
    answer.await.map_err(Failure)
}

/// `dustLimit` in satoshi, `filterSpent` 0 or 1; both come back in the answer.
fn filter(query: &HashMap<String, String>) -> Result<Filter, Problem> {
    if let Some(unknown) = query.keys().find(|key| !["dustLimit", "filterSpent"].contains(&key.as_str())) {
        return Err(Problem::bad(format!(
            "unknown parameter '{unknown}'; there are dustLimit and filterSpent"
        )));
    }
    let dust = query.get("dustLimit").map_or(Ok(0), |text| {
        text.parse().map_err(|_| Problem::bad(format!("dustLimit is a number of satoshi, not '{text}'")))
    })?;
    let spent = match query.get("filterSpent").map(String::as_str) {
        None | Some("0" | "false") => false,
        Some("1" | "true") => true,
        Some(other) => return Err(Problem::bad(format!("filterSpent is 0 or 1, not '{other}'"))),
    };
    Ok(Filter { dust, spent })
}

pub(super) fn height(text: &str) -> Result<u32, Problem> {
    text.parse().map_err(|_| Problem::bad(format!("'{text}' is no height")))
}

/// An answer about a block, with the given part.
async fn about(
    web: Shared,
    block: String,
    query: HashMap<String, String>,
    part: &'static str,
    make: impl FnOnce(&Web, &SilentBlock, &[usize]) -> Result<Value, Problem> + Send + 'static,
) -> Answer {
    let answer = web.ask(move |web| {
        let filter = filter(&query)?;
        let block = web.blocks.at(height(&block)?)?;
        let left = web.blocks.left(&block, filter)?;
        let mut answer = json!({
            "height": block.height,
            "hash": block.hash.to_string(),
            "dust_limit": filter.dust,
            "filter_spent": u8::from(filter.spent),
        });
        answer[part] = make(web, &block, &left)?;
        Reply::json(&answer, Keep::SHORT)
    });
    answer.await.map_err(Failure)
}

async fn tweaks(
    State(web): State<Shared>,
    Path(block): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Answer {
    about(web, block, query, "tweaks", |_, block, left| {
        Ok(left.iter().map(|number| block.rows[*number].tweak.to_lower_hex_string()).collect())
    })
    .await
}

async fn compute_index(
    State(web): State<Shared>,
    Path(block): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Answer {
    about(web, block, query, "index", |_, block, left| {
        let entry = |number: &usize| {
            let row = &block.rows[*number];
            let outputs: Vec<String> = row.outputs.iter().map(|prefix| prefix.to_lower_hex_string()).collect();
            json!({ "txid": row.txid.to_string(), "tweak": row.tweak.to_lower_hex_string(), "outputs": outputs })
        };
        Ok(left.iter().map(entry).collect())
    })
    .await
}

async fn utxos(
    State(web): State<Shared>,
    Path(block): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Answer {
    about(web, block, query, "utxos", |web, block, left| {
        let all = web.blocks.utxos(block)?;
        let entries = left.iter().flat_map(|number| &all[*number]).map(|utxo| {
            json!({
                "txid": utxo.outpoint.txid.to_string(),
                "vout": utxo.outpoint.vout,
                "value": utxo.value,
                "scriptpubkey": format!("5120{}", utxo.key.to_lower_hex_string()),
                "spent": utxo.spent,
            })
        });
        Ok(entries.collect())
    })
    .await
}
