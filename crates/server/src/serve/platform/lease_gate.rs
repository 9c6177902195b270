//! A node that lost its lease answers no request of the platform: another node may serve by now, whose answer would be
//! another one.

use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};

/// Answers 503 in place of what the routes answered, unless this node may acknowledge when they have.
pub(super) fn closed_unless(
    may_acknowledge: impl Fn() -> bool + Clone + Send + Sync + 'static,
    router: Router,
) -> Router {
    router.route_layer(from_fn(move |request: Request, next: Next| {
        let may_acknowledge = may_acknowledge.clone();
        async move {
            let answer = next.run(request).await;
            if may_acknowledge() { answer } else { refusal() }
        }
    }))
}

fn refusal() -> Response {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    let problem = serde_json::json!({
        "type": "about:blank",
        "title": "Service Unavailable",
        "status": status.as_u16(),
        "detail": "this node does not serve any more, and what became of the request is not known: send it again",
    });
    let headers = [(header::CONTENT_TYPE, "application/problem+json"), (header::RETRY_AFTER, "1")];
    (status, headers, problem.to_string()).into_response()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use axum::body::Body;
    use axum::routing::get;
    use tower_service::Service as _;

    use super::*;

    #[tokio::test]
    async fn a_lease_that_ends_while_a_request_is_processed_closes_its_answer() {
        let lasts = Arc::new(AtomicBool::new(true));
        let (may, ends) = (Arc::clone(&lasts), Arc::clone(&lasts));
        let routes = Router::new().route("/show", get(|| async { "shown" })).route(
            "/change",
            get(move || async move {
                ends.store(false, Ordering::Relaxed);
                "changed"
            }),
        );
        let mut router = closed_unless(move || may.load(Ordering::Relaxed), routes);
        for (path, status) in [("/show", 200), ("/change", 503), ("/show", 503)] {
            let request = Request::builder().uri(path).body(Body::empty()).unwrap();
            let answer = router.call(request).await.unwrap();
            assert_eq!(answer.status().as_u16(), status, "{path}");
        }
    }
}
