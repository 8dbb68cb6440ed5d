//! Statistics of a frame: the streams of all chunks, by role and coder.

use crate::error::Result;
use crate::frame::matches::STORED;
use crate::frame::{Frame, FrameFormat};
use crate::layout::streams::{StreamInfo, Streams};

/// The streams of all chunks.
pub(crate) fn streams<D: FrameFormat>(frame: &Frame<'_, D>) -> Result<Vec<StreamInfo>> {
    let mut streams = Streams::default();
    for index in frame.chunks_of(0..frame.content_len) {
        let content = frame.content_of(index);
        let (_, description, _) = frame.chunk(index)?;
        description.streams((content.end - content.start) as usize, &mut streams);
    }
    let (copies, copied) = frame.copied();
    if copies > 0 {
        streams.add_stored("repeats", "copies", copied as usize, (copies * STORED) as u64);
    }
    Ok(streams.0)
}
