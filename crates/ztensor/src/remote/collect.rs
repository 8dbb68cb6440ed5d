//! Bodies in memory: the one function that makes bytes of an answer.

use futures_util::TryStreamExt;
use object_store::GetResult;

/// The body of an answer, which must not be longer than `limit`. It is received piece by piece, so
/// that a body without end costs no more than that; what the server announced does not matter.
pub(super) async fn collect(answer: GetResult, limit: u64) -> object_store::Result<Vec<u8>> {
    let mut body = answer.into_stream();
    let mut bytes: Vec<u8> = Vec::new();
    while let Some(piece) = body.try_next().await? {
        if piece.len() as u64 > limit - bytes.len() as u64 {
            return Err(object_store::Error::Generic {
                store: "remote",
                source: format!("the server sends more than the {limit} bytes that were asked for").into(),
            });
        }
        bytes
            .try_reserve(piece.len())
            .map_err(|error| object_store::Error::Generic { store: "remote", source: Box::new(error) })?;
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}
