//! Finds out in the background whether the images of profiles can be started (docs/api.md 9.1).

use super::{NO_DRIVER, keep_busy};
use crate::app::App;
use coordinator::Error;
use coordinator::log::{ImageState, ImageStatus};
use engine::event::payload::Image;
use sandbox::Sandboxes;
use std::sync::Arc;

/// Starts to find out whether these images can be started. This node does it at once; if the node is lost, another one
/// does.
///
/// # Errors
/// When the database fails.
pub(crate) async fn provision(app: &Arc<App>, names: &[String]) -> Result<(), Error> {
    let Some(driver) = app.sandboxes.clone() else { return Ok(()) };
    if names.is_empty() {
        return Ok(());
    }
    app.log.mark_images_pending(names).await?;
    let app = Arc::clone(app);
    app.clone().tasks.spawn(async move { provision_pending(&app, &driver).await });
    Ok(())
}

/// Provisions the pending images on which no node works, one after the other, until there is none left or the node
/// stops.
pub(super) async fn provision_pending(app: &App, driver: &Sandboxes) {
    while !app.stop.is_cancelled() {
        let name = match app.log.claim_image().await {
            Ok(Some(name)) => name,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(error = %error, "images could not be looked for");
                return;
            }
        };
        let provisioning = keep_busy(|| app.log.keep_image_busy(&name), driver.provision(&name));
        // A node that stops leaves it to another one.
        let Some(provisioned) = app.stop.run_until_cancelled(provisioning).await else { return };
        let status = match provisioned {
            Ok(()) => ImageStatus { state: ImageState::Available, detail: None },
            Err(error) => {
                tracing::warn!(image = name, error = %error, "an image of a profile cannot be started");
                ImageStatus { state: ImageState::Error, detail: Some(error.to_string()) }
            }
        };
        if let Err(error) = app.log.note_image(&name, status).await {
            tracing::warn!(error = %error, "the status of an image could not be noted; it is found out again");
        }
    }
}

/// What is known about these images, in their order.
///
/// # Errors
/// When the database fails.
pub(crate) async fn statuses(app: &App, names: Vec<String>) -> Result<Vec<Image>, Error> {
    let known = match app.sandboxes {
        Some(_) => app.log.image_statuses(&names).await?,
        None => Default::default(),
    };
    let status = |name: String| {
        let (state, detail) = match (&app.sandboxes, known.get(&name)) {
            (None, _) => (ImageState::Error, Some(NO_DRIVER.to_owned())),
            (Some(_), Some(status)) => (status.state, status.detail.clone()),
            (Some(_), None) => (ImageState::Pending, None),
        };
        Image { detail, name, status: state.as_str().to_owned() }
    };
    Ok(names.into_iter().map(status).collect())
}
