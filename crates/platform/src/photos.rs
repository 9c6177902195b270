//! Photos of registers: sent under an id the device made, stored once, never changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::response::IntoResponse as _;
use bytes::Bytes;
use fulmar_http::PART_BYTES;
use futures_util::{Stream, stream};

use crate::extract;
use crate::prelude::*;
use crate::store::photos;
use crate::table::in_parts;

const MAX_PHOTO_BYTES: usize = 4 * 1024 * 1024;

/// Kinds that are taken, by how their bytes begin: what a client calls them does not matter.
fn kind_of(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0xFF, 0xD8, 0xFF, ..] => Some("image/jpeg"),
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1A, b'\n', ..] => Some("image/png"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

fn id_of(id: &Name) -> Result<String> {
    let id: Result<Uuid, _> = id.parse();
    id.map(|id| id.to_string()).map_err(|_| Problem::missing("photo"))
}

/// Send a photo
///
/// JPEG, PNG or WebP of at most 4 MiB. The same bytes again are answered with 200, others with 409. An account that has
/// stored as many bytes of photos as it may per day gets 429 with `Retry-After`, one for whose photos there is no space
/// left, 507.
#[utoipa::path(put, path = "/{twin}/photo/{id}", tag = "photos", params(("id" = Uuid, Path)),
    request_body(content(("image/jpeg"), ("image/png"), ("image/webp"))),
    responses((status = 200, description = "It was already stored"),
        (status = 201, description = "It is stored"),
        (status = 429, description = "The account has stored as many photos as it may per day"),
        (status = 507, description = "The space for photos is used up")))]
pub(crate) async fn put(Call(app, member): Call, Id(id): Id, request: Request) -> Answer {
    member.may(Deed::Read)?;
    let id = id_of(&id)?;
    let bytes = extract::bytes(request, MAX_PHOTO_BYTES).await?;
    let kind = kind_of(&bytes)
        .ok_or_else(|| Problem::media_type("the content is not a JPEG, PNG or WebP image"))?;
    let (twin, account, length) = (member.twin.clone(), member.name().clone(), bytes.len() as u64);
    let size = length as f64;
    app.photo_bytes.take_many(account.clone(), size, Instant::now()).map_err(|retry_after_s| {
        let text =
            "this account has stored as many photos as it may per day; the rest can be sent later";
        Problem::too_often(text, retry_after_s)
    })?;
    // Whether its space is counted; on the writer's thread, so that a photo that is there already needs none.
    let counted = Arc::new(AtomicBool::new(false));
    let (space, is_counted) = (app.clone(), Arc::clone(&counted));
    let new = app.store.write(move |db| {
        match photos::get(db.within(&member.twin), &id)? {
            Some((_, known)) if known == bytes => return Ok(false),
            Some(_) => return Err(Problem::conflict("another photo has this id")),
            None => {}
        }
        space.photo_space.reserve(&member.twin, member.name(), length)?;
        is_counted.store(true, Relaxed);
        photos::add(db, &member.twin, &id, kind, &bytes, member.name(), Time::now())?;
        Ok(true)
    });
    let new = new.await;
    if !matches!(new, Ok(true)) {
        app.photo_bytes.give_back_many(&account, size);
        if counted.load(Relaxed) {
            app.photo_space.give_back(&twin, &account, length);
        }
    }
    Ok(if new? { StatusCode::CREATED } else { StatusCode::OK }.into_response())
}

/// A photo
#[utoipa::path(get, path = "/{twin}/photo/{id}", tag = "photos", params(("id" = Uuid, Path)),
    responses((status = 200, description = "The photo",
        content(("image/jpeg"), ("image/png"), ("image/webp")))))]
pub(crate) async fn show(Call(app, member): Call, Id(id): Id, conditions: Conditions) -> Answer {
    member.may(Deed::LookAtReadings)?;
    let id = id_of(&id)?;
    let wanted = id.clone();
    let described = member.read(&app, move |db| Ok(photos::described(db, &wanted)?));
    let missing = || Problem::missing("photo");
    let (kind, length, received_at) = described.await?.ok_or_else(missing)?;
    // A photo never changes, so that its bytes need not be read for this. With its time, because when a twin is deleted and
    // made again, an id may come again for another photo.
    let etag = format!("\"{id}-{}\"", received_at.0);
    let kind = match &*kind {
        "image/png" => "image/png",
        "image/webp" => "image/webp",
        _ => "image/jpeg",
    };
    let mut response = conditions.tagged(Body::empty(), kind, &etag);
    if response.status() == StatusCode::OK {
        let parts = Parts { app: app.clone(), twin: member.twin.clone(), id, received_at };
        *response.body_mut() = in_parts(member.parts(&app, parts.stream(length))).await?;
        response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    }
    let sniff = HeaderValue::from_static("nosniff");
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, sniff);
    Ok(response)
}

/// A photo that is read a part at a time.
struct Parts {
    app: App,
    twin: Name,
    id: String,
    received_at: Time,
}

impl Parts {
    fn stream(self, length: u64) -> impl Stream<Item = Result<Bytes>> + Send + 'static {
        stream::try_unfold((self, 0), move |(parts, offset)| async move {
            if offset >= length {
                return Ok(None);
            }
            let bytes = parts.next(offset).await?;
            let end = offset + bytes.len() as u64;
            Ok(Some((bytes, (parts, end))))
        })
    }

    async fn next(&self, offset: u64) -> Result<Bytes> {
        let (twin, id, received_at) = (self.twin.clone(), self.id.clone(), self.received_at);
        let read = self
            .app
            .store
            .read(move |db| Ok(photos::part(db, &twin, &id, received_at, offset, PART_BYTES)?));
        // Its twin may have been deleted meanwhile.
        let bytes = read.await?.filter(|bytes| !bytes.is_empty());
        bytes.map(Bytes::from).ok_or_else(|| Problem::missing("photo"))
    }
}
