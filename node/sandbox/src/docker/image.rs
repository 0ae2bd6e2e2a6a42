//! Images: looked for, and fetched where they are missing.

use super::{Docker, Failure};
use crate::Error;
use bollard::query_parameters::CreateImageOptionsBuilder;
use futures_util::StreamExt;
use std::time::Duration;
use tokio::time::timeout;

/// How long fetching an image may take.
const PULL: Duration = Duration::from_secs(600);

impl Docker {
    pub(crate) async fn provision(&self, image: &str) -> Result<(), Error> {
        let client = self.client().await?;
        match self.call(client.inspect_image(image)).await {
            Ok(_) => return Ok(()),
            Err(Failure::Answer(404, _)) => {}
            Err(failure) => return Err(failure.during(&format!("the image {image} cannot be looked for"))),
        }
        let reference = with_tag(image);
        let options = CreateImageOptionsBuilder::new().from_image(&reference).build();
        let pulled = async {
            let mut progress = client.create_image(Some(options), None, None);
            while let Some(step) = progress.next().await {
                step?;
            }
            Ok::<_, bollard::errors::Error>(())
        };
        match timeout(PULL, pulled).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Failure::from(error).during(&format!("the image {image} cannot be fetched"))),
            Err(_) => Err(Error::Unavailable(format!("the image {image} was not fetched in {} s", PULL.as_secs()))),
        }
    }
}

/// Without a tag the daemon would fetch every tag that there is.
fn with_tag(image: &str) -> String {
    let named = image.contains('@') || image.rsplit('/').next().is_some_and(|last| last.contains(':'));
    if named { image.to_owned() } else { format!("{image}:latest") }
}

#[cfg(test)]
mod tests {
    use super::with_tag;

    #[test]
    fn one_tag_is_fetched() {
        assert_eq!(with_tag("python"), "python:latest");
        assert_eq!(with_tag("python:3.12"), "python:3.12");
        assert_eq!(with_tag("localhost:5000/python"), "localhost:5000/python:latest");
        assert_eq!(with_tag("localhost:5000/python@sha256:00"), "localhost:5000/python@sha256:00");
    }
}
