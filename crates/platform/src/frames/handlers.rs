//! Frames over HTTP, and as MQTT messages that the program hands over.

use super::intake::{FrameIntake, take_all};
use super::types::{FrameResult, NewFrame};
use crate::prelude::*;
use crate::readings::handlers::{announce, announce_lists, sender, stored_readings};
use crate::readings::intake::Sender;
use crate::topics::Whose;

/// Frames sent at once.
const MAX_FRAMES: usize = 1000;

/// Frames that are sent.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FrameUpload {
    /// The device that received them.
    receiver: Name,
    #[serde(deserialize_with = "at_most::<MAX_FRAMES, _, _>")]
    #[schema(value_type = Vec<NewFrame>, max_items = 1000)]
    frames: Vec<Each<NewFrame>>,
}

/// Results, in the order of the request.
#[derive(Serialize, ToSchema)]
pub(crate) struct FrameResults {
    results: Vec<FrameResult>,
}

/// Send frames of wireless M-Bus meters
///
/// They are decrypted with the meters' keys and stored as readings; each has an outcome of its own.
#[utoipa::path(post, path = "/{twin}/frame", tag = "frames", request_body = FrameUpload,
    responses((status = 200, body = FrameResults)))]
pub(crate) async fn add(Call(app, member): Call, body: Unread<FrameUpload>) -> Answer {
    member.may(Deed::Receive)?;
    let upload = body.read().await?;
    let whose = app.account_cache.whose(&member.twin, &upload.receiver, member.name());
    // People may share a phone: what they send is stored as theirs. A machine has no business at another, and nobody at what
    // has another account's name.
    let may_share =
        app.account_cache.namesake(&upload.receiver).is_none() && member.role != Role::Device;
    if whose == Whose::Others && !may_share && !member.role.may(Deed::Manage) {
        return Err(Problem::forbidden("this receiver is another user's device"));
    }
    if upload.frames.len() > MAX_FRAMES {
        return Err(Problem::too_large(format!("at most {MAX_FRAMES} frames at once")));
    }
    let results = store_frames(&app, sender(&member), upload.receiver, upload.frames).await?;
    json(StatusCode::OK, &FrameResults { results })
}

/// Stores frames and notifies subscribers.
pub(crate) async fn store_frames(
    app: &App,
    sender: Sender,
    receiver: Name,
    frames: Vec<Each<NewFrame>>,
) -> Result<Vec<FrameResult>> {
    let (twin, decoders) = (sender.twin.clone(), std::sync::Arc::clone(&app.decoders));
    let taken = app.store.write(move |db| {
        let taken = take_all(db, &decoders, &sender, &receiver, frames)?;
        let stored = stored_readings(db.within(&sender.twin), taken.stored.clone())?;
        Ok((taken, stored))
    });
    let (FrameIntake { results, heard, lists, .. }, stored) = taken.await?;
    app.counts.frames(&results);
    for heard in &heard {
        app.announcements.publish(format!("fulmar/{twin}/heard/{}", heard.meter), heard, false);
    }
    announce(app, &twin, &stored);
    announce_lists(app, &twin, lists).await?;
    Ok(results)
}
