//! Subagents: containers that run one command line. `script::SUBAGENT` says what their main process does; the files that it
//! reads are put into the container before it is started, those that it writes are read after it has ended.

use super::{Docker, Failure, container, why_ended};
use crate::capture::Capture;
use crate::script::{FOLDER, SUBAGENT};
use crate::{Captured, End, Ended, Error, Kind, Progress, SubagentSpec};
use bollard::models::ContainerStateStatusEnum as Status;
use bollard::query_parameters::{DownloadFromContainerOptionsBuilder, UploadToContainerOptionsBuilder};
use futures_util::StreamExt;
use std::io::{self, Read};
use tar::{Archive, Builder, EntryType, Header};
use uuid::Uuid;

/// Bytes of an archive that come before the contents of its first file, at most.
const HEADERS: usize = 16 << 10;
/// Bytes of the file that says how a subagent ended.
const END: usize = 4 << 10;

impl Docker {
    pub(crate) async fn launch(&self, spec: &SubagentSpec) -> Result<(), Error> {
        let id = &spec.container.id;
        let kept = spec.output_cap.saturating_add(1);
        let limits = [spec.timeout.as_secs().max(1).to_string(), kept.to_string()];
        let [timeout, kept] = limits;
        let main = ["/bin/sh", "-c", SUBAGENT, "sh", &timeout, &kept].map(str::to_owned).into();
        let state = self.create(&spec.container, Kind::Subagent, main).await?;
        if state.status != Some(Status::CREATED) {
            return Ok(());
        }
        let tar = files(spec).map_err(|error| Error::Refused(format!("the prompt cannot be packed: {error}")))?;
        let options = UploadToContainerOptionsBuilder::new().path("/").build();
        let client = self.client().await?;
        let name = container::name(id)?;
        let upload = client.upload_to_container(&name, Some(options), bollard::body_full(tar.into()));
        match self.call(upload).await {
            Ok(()) => {}
            Err(Failure::Answer(404, _)) => return Err(Error::Gone("its container does not exist any more".into())),
            Err(failure) => return Err(failure.during("the prompt cannot be put into the container")),
        }
        self.run(id).await
    }

    pub(crate) async fn collect(&self, id: &str, output_cap: usize) -> Result<Progress, Error> {
        let state = self.inspect(id).await?.state.unwrap_or_default();
        match state.status {
            Some(Status::CREATED) => return Ok(Progress::NotStarted),
            Some(Status::EXITED | Status::DEAD | Status::REMOVING) => {}
            Some(Status::RUNNING | Status::PAUSED | Status::RESTARTING | Status::STOPPING | Status::EMPTY) | None => {
                return Ok(Progress::Running);
            }
        }
        let (end, stdout, stderr) = tokio::try_join!(
            self.file(id, "result/end", END),
            self.file(id, "result/stdout", output_cap),
            self.file(id, "result/stderr", output_cap)
        )?;
        let out_of_memory = || state.oom_killed.unwrap_or(false).then(|| "it ran out of memory".to_owned());
        let end = match end.text.trim_end().split_once(' ') {
            Some(("exit", code)) => {
                code.parse().ok().map(|code| End::Exited(code, out_of_memory().filter(|_| code != 0)))
            }
            Some(("missing", tool)) => Some(End::Died(format!("the image has no program `{tool}`"))),
            None if end.text == "timeout\n" => Some(End::TimedOut),
            _ => None,
        };
        let end = end.unwrap_or_else(|| End::Died(why_ended(&state)));
        Ok(Progress::Ended(Ended { end, stdout, stderr }))
    }

    /// The beginning of a file of a container that has ended; nothing if there is no such file.
    async fn file(&self, id: &str, path: &str, cap: usize) -> Result<Captured, Error> {
        let client = self.client().await?;
        let options = DownloadFromContainerOptionsBuilder::new().path(&format!("{FOLDER}/{path}")).build();
        let name = container::name(id)?;
        let download = async {
            let mut archive = Vec::new();
            let mut chunks = client.download_from_container(&name, Some(options));
            while archive.len() < cap.saturating_add(HEADERS) {
                let Some(chunk) = chunks.next().await else { break };
                archive.extend_from_slice(&chunk?);
            }
            Ok(archive)
        };
        match self.call(download).await {
            Ok(archive) => Ok(first_file(&archive, cap)),
            Err(Failure::Answer(404, _)) => Ok(Captured::default()),
            Err(failure) => Err(failure.into()),
        }
    }
}

/// The archive with the command line and the prompt, in a folder that no other upload uses.
fn files(spec: &SubagentSpec) -> io::Result<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    let mut add = |path: &str, kind: EntryType, contents: &[u8]| {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        // The image may name any user.
        header.set_mode(if kind.is_dir() { 0o777 } else { 0o444 });
        header.set_size(contents.len() as u64);
        tar.append_data(&mut header, path, contents)
    };
    let folder = FOLDER.trim_start_matches('/');
    let own = format!("{folder}/{}", Uuid::now_v7().simple());
    add(folder, EntryType::Directory, b"")?;
    add(&own, EntryType::Directory, b"")?;
    add(&format!("{own}/command"), EntryType::Regular, spec.command.as_bytes())?;
    add(&format!("{own}/prompt"), EntryType::Regular, &spec.prompt)?;
    add(&format!("{own}/ready"), EntryType::Regular, b"")?;
    tar.into_inner()
}

/// The first file of an archive that may have been cut off.
fn first_file(archive: &[u8], cap: usize) -> Captured {
    let mut capture = Capture::new(cap);
    let mut archive = Archive::new(archive);
    let entry = archive.entries().ok().and_then(|mut entries| entries.next()?.ok());
    if let Some(mut entry) = entry.filter(|entry| entry.header().entry_type().is_file()) {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = entry.read(&mut buffer) {
            capture.push(&buffer[..count]);
        }
    }
    capture.finish()
}
