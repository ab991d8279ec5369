//! `/v1/silent`: info, tweaks of blocks and ranges, commitments. `docs/http.md` has the binary form byte by byte.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, header};
use axum::routing::get;
use bitcoin::hashes::Hash;
use bitcoin::hex::DisplayHex;
use serde_json::{Value, json};

use super::super::problem::Problem;
use super::super::reply::{Keep, Reply};
use super::super::web::{Shared, Web};
use super::commitments;
use crate::light::{Filter, SilentBlock};

/// What can be asked for of tweaks.
const PARAMETERS: [&str; 4] = ["dust", "unspent", "outputs", "format"];

/// Blocks of one answer.
const BLOCKS: u32 = 1_000;

/// What is offered, in OpenAPI. Tests keep it true.
const OPENAPI: &str = include_str!("openapi.json");

/// The paths, as the description has them.
const INFO: &str = "/v1/silent/info";
const TWEAKS: &str = "/v1/silent/tweaks/{blocks}";
const COMMITMENT: &str = "/v1/silent/commitment/{block}";
const DESCRIPTION: &str = "/v1/openapi.json";

pub(crate) fn router() -> Router<Shared> {
    Router::new()
        .route(INFO, get(info))
        .route(TWEAKS, get(tweaks))
        .route(COMMITMENT, get(commitment))
        .route(DESCRIPTION, get(|| async { Reply::raw_json(OPENAPI, Keep::Seconds(3600)) }))
}

async fn info(State(web): State<Shared>) -> Result<Reply, Problem> {
    web.ask(move |web| {
        let (start, indexed) = web.blocks.heights()?;
        let tip = web.node.tip()?;
        let answer = json!({
            "network": web.node.network().to_core_arg(),
            "start_height": start,
            "indexed_height": indexed,
            "height": tip.height,
            "hash": tip.header.block_hash().to_string(),
            "ready": web.node.readiness() == crate::node::Readiness::Ready,
            "formats": ["json", "binary"],
            "filters": { "dust": true, "unspent": true },
            "max_blocks": BLOCKS,
        });
        Reply::json(&answer, Keep::Never)
    })
    .await
}

/// What is asked for, and in which form.
struct Wanted {
    filter: Filter,
    /// Transaction ids and output prefixes, too.
    outputs: bool,
    binary: bool,
}

impl Wanted {
    fn new(query: &HashMap<String, String>, headers: &HeaderMap) -> Result<Self, Problem> {
        let flag = |name: &str| match query.get(name).map(String::as_str) {
            None | Some("false" | "0") => Ok(false),
            Some("" | "true" | "1") => Ok(true),
            Some(other) => Err(Problem::bad(format!("{name} is true or false, not '{other}'"))),
        };
        // One that is misspelt would be one that is ignored.
        if let Some(unknown) = query.keys().find(|key| !PARAMETERS.contains(&key.as_str())) {
            return Err(Problem::bad(format!(
                "unknown parameter '{unknown}'; there are dust, unspent, outputs and format"
            )));
        }
        let dust = query.get("dust").map_or(Ok(0), |text| {
            text.parse().map_err(|_| Problem::bad(format!("dust is a number of satoshi, not '{text}'")))
        })?;
        let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("");
        let binary = match query.get("format").map(String::as_str) {
            None => accept.contains("application/octet-stream"),
            Some("json") => false,
            Some("binary" | "data") => true,
            Some(other) => return Err(Problem::bad(format!("format is json or binary, not '{other}'"))),
        };
        Ok(Self { filter: Filter { dust, spent: flag("unspent")? }, outputs: flag("outputs")?, binary })
    }
}

/// A height, a block's hash, or `from-to`.
fn heights(web: &Web, text: &str) -> Result<RangeInclusive<u32>, Problem> {
    let number = |text: &str| -> Result<u32, Problem> {
        let wrong = || Problem::bad(format!("'{text}' is no height, no hash and no range as 100-200"));
        let number: u64 = text.parse().map_err(|_| wrong())?;
        u32::try_from(number).map_err(|_| Problem::missing(format!("no block at height {number}")))
    };
    if text.len() == 64 {
        let hash = text.parse().map_err(|_| Problem::bad("the hash isn't hexadecimal"))?;
        let height =
            web.node.height_of(hash)?.ok_or_else(|| Problem::missing("no such block in the best chain"))?;
        return Ok(height..=height);
    }
    let range = match text.split_once('-') {
        Some((from, to)) => number(from)?..=number(to)?,
        None => number(text)?..=number(text)?,
    };
    if range.is_empty() {
        return Err(Problem::bad("the range ends before it begins"));
    }
    if range.end() - range.start() >= BLOCKS {
        return Err(Problem::bad(format!("too many blocks: the limit is {BLOCKS}")));
    }
    if *range.end() > web.node.tip()?.height {
        return Err(Problem::missing(format!("no block at height {}", range.end())));
    }
    Ok(range)
}

async fn tweaks(
    State(web): State<Shared>,
    Path(blocks): Path<String>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
) -> Result<Reply, Problem> {
    web.ask(move |web| {
        let wanted = Wanted::new(&query, &headers)?;
        let range = heights(web, &blocks)?;
        let keep = match wanted.filter.spent {
            // That changes with every block.
            true => Keep::SHORT,
            false => Keep::of_height(*range.end(), web.node.tip()?.height),
        };
        let single = !blocks.contains('-');
        let (mut bytes, mut list) = (Vec::new(), Vec::new());
        for height in range {
            let block = web.blocks.at(height)?;
            let left = web.blocks.left(&block, wanted.filter)?;
            if wanted.binary {
                write(&mut bytes, &block, &left, &wanted);
            } else {
                list.push(as_json(&block, &left, &wanted));
            }
            if bytes.len() > web.response_bytes {
                return Err(Problem::bad("the answer is too large: ask for fewer blocks"));
            }
        }
        match (wanted.binary, single) {
            (true, _) => Ok(Reply::octets(bytes, keep)),
            (false, true) => Reply::json(&list[0], keep),
            (false, false) => Reply::json(&list, keep),
        }
    })
    .await
}

/// Height, hash, dust limit, flags, number of rows; then the rows.
fn write(bytes: &mut Vec<u8>, block: &SilentBlock, left: &[usize], wanted: &Wanted) {
    bytes.extend(block.height.to_le_bytes());
    bytes.extend(block.hash.to_byte_array());
    bytes.extend(wanted.filter.dust.to_le_bytes());
    bytes.push(u8::from(wanted.filter.spent) | u8::from(wanted.outputs) << 1);
    bytes.extend((left.len() as u32).to_le_bytes());
    for row in left.iter().map(|number| &block.rows[*number]) {
        bytes.extend(row.tweak);
        if wanted.outputs {
            bytes.extend(row.txid.to_byte_array());
            bytes.extend((row.outputs.len() as u16).to_le_bytes());
            bytes.extend(row.outputs.as_flattened());
        }
    }
}

fn as_json(block: &SilentBlock, left: &[usize], wanted: &Wanted) -> Value {
    let rows = left.iter().map(|number| &block.rows[*number]);
    let mut answer = json!({
        "height": block.height,
        "hash": block.hash.to_string(),
        "dust_limit": wanted.filter.dust,
        "filter_spent": wanted.filter.spent,
    });
    if wanted.outputs {
        let index = rows.map(|row| {
            let outputs: Vec<String> = row.outputs.iter().map(|prefix| prefix.to_lower_hex_string()).collect();
            json!({ "txid": row.txid.to_string(), "tweak": row.tweak.to_lower_hex_string(), "outputs": outputs })
        });
        answer["index"] = index.collect();
    } else {
        answer["tweaks"] = rows.map(|row| row.tweak.to_lower_hex_string()).collect();
    }
    answer
}

async fn commitment(State(web): State<Shared>, Path(block): Path<String>) -> Result<Reply, Problem> {
    web.ask(move |web| {
        let range = heights(web, &block)?;
        if block.contains('-') {
            return Err(Problem::bad("a commitment is of one block"));
        }
        let block = web.blocks.at(*range.start())?;
        let chained = web.commitments.at(web, &web.blocks, block.height)?;
        let answer = json!({
            "height": block.height,
            "hash": block.hash.to_string(),
            "count": block.rows.len(),
            "tweaks": commitments::of_block(&block).to_lower_hex_string(),
            "commitment": chained.to_lower_hex_string(),
        });
        Reply::json(&answer, Keep::of_height(block.height, web.node.tip()?.height))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_has_every_path_and_parameter() {
        let description: Value = serde_json::from_str(OPENAPI).unwrap();
        let paths: Vec<&String> = description["paths"].as_object().unwrap().keys().collect();
        let mut ours = [INFO, TWEAKS, COMMITMENT, DESCRIPTION];
        ours.sort_unstable();
        assert_eq!(paths, ours);
        let parameters = description["paths"][TWEAKS]["get"]["parameters"].as_array().unwrap().iter();
        let mut of_query: Vec<&str> =
            parameters.filter(|one| one["in"] == "query").map(|one| one["name"].as_str().unwrap()).collect();
        of_query.sort_unstable();
        let mut known = PARAMETERS;
        known.sort_unstable();
        assert_eq!(of_query, known);
        assert_eq!(BLOCKS, 1_000, "as the description says");
    }

    #[test]
    fn parameters_are_read_or_refused() {
        let read = |pairs: &[(&str, &str)]| {
            let query = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            Wanted::new(&query, &HeaderMap::new())
                .map(|wanted| (wanted.filter, wanted.outputs, wanted.binary))
        };
        assert_eq!(read(&[]).unwrap(), (Filter { dust: 0, spent: false }, false, false));
        let all = [("dust", "7"), ("unspent", "1"), ("outputs", "true"), ("format", "binary")];
        assert_eq!(read(&all).unwrap(), (Filter { dust: 7, spent: true }, true, true));
        for wrong in [
            ("dust", ""),
            ("dust", "1.5"),
            ("unspent", "yes"),
            ("outputs", "2"),
            ("format", ""),
            ("Dust", "1"),
        ] {
            let problem = read(&[wrong]).unwrap_err();
            assert_eq!(problem.status.as_u16(), 400, "{wrong:?}");
            assert!(problem.text.to_lowercase().contains(&wrong.0.to_lowercase()), "{}", problem.text);
        }
    }
}
