//! Committing: the files of a version become objects, a manifest and a commit, and then visible.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use z4ai::Effort;

use super::choose::{Chooser, ObjectKind};
use super::cut::{self, FileInput, Piece, PieceKind};
use super::history::Commit;
use super::index::{self, Sketches};
use super::locations::{self, Objects};
use super::manifest::{FileEntry, Manifest, ObjectEntry, Segment};
use super::names::{COMMITS, MANIFESTS, RecordId, check_path, check_ref_name};
use super::object::ObjectType;
use super::pack::{Encoded, EncodedForm, PackSizes, PackWriter};
use super::refs::{self, RefKind};
use super::restore::ObjectSet;
use super::store::SmallFile;
use super::{Repository, gc};
use crate::base::parallel;
use crate::base::pool::BufferPool;
use crate::error::{Error, ErrorKind, Result};
use crate::id::ContentId;
use crate::progress::{Observer, advance, finish};
use crate::write::compress::Compressors;
use crate::write::export::TensorList;

/// The branch that is meant where none is named.
pub const MAIN: &str = "main";
/// Headers of tensor files stand in the manifest up to this size, and other files. (structural: a
/// version is opened without a request for them)
const HEADER_LITERAL: u64 = 4 << 20;
const OTHER_LITERAL: u64 = 4 << 10;
/// Tensors that are encoded at a time, at least one: bytes for each thread. (limit)
const ENCODED_AHEAD: u64 = 64 << 20;
/// How often a ref is tried that others change at the same time. (limit)
const ATTEMPTS: usize = 64;

/// How to commit.
#[derive(Clone, Default)]
pub struct CommitOptions<'a> {
    /// What is said about it.
    pub message: String,
    /// By whom.
    pub author: String,
    /// The branch that moves to it; `main` if `None`.
    pub branch: Option<String>,
    /// A tag for it.
    pub tag: Option<String>,
    /// Further parents: for a merge.
    pub parents: Vec<String>,
    /// Versions, by ref or id, that its tensors may resemble.
    pub bases: Vec<String>,
    /// The commit that the branch must be at; the call fails if it is not. Without it, another
    /// writer's commit that came in between becomes the parent.
    pub expected: Option<RecordId>,
    /// Any text by any name, such as a step or a loss.
    pub metadata: BTreeMap<String, String>,
    /// Files of a folder that are left out, by their paths from there: `*` stands for any text, `?` for
    /// any character.
    pub exclude: Vec<String>,
    /// How hard the codec tries.
    pub effort: Effort,
    /// Threads to use; 0 is one per core. The bytes written do not depend on it.
    pub threads: usize,
    /// Is told how many bytes are done, and may cancel.
    pub observer: Option<&'a dyn Observer>,
}

/// What was committed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Committed {
    /// The commit's id.
    pub id: RecordId,
    /// The branch that is at it.
    pub branch: String,
    /// Its first parent.
    pub parent: Option<RecordId>,
    /// Files.
    pub files: u64,
    /// Tensors.
    pub tensors: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes that were stored for what was not there yet.
    pub stored: u64,
    /// Objects that were there already.
    pub same: u64,
    /// Objects that are stored as a difference.
    pub deltas: u64,
    /// Objects that a cast makes of others.
    pub casts: u64,
    /// Objects that are stored whole.
    pub whole: u64,
}

/// What became of a piece.
enum Made {
    Literal(Vec<u8>),
    Object(ContentId, ObjectType, String, Option<Box<Encoded>>),
}

/// Objects of a version by the name of the tensor, or the place in its file.
fn keys(manifest: &Manifest) -> impl Iterator<Item = (String, ContentId)> {
    manifest.files.iter().flat_map(move |file| {
        let mut unnamed = 0usize;
        file.segments.iter().filter_map(move |segment| {
            let Segment::Object(index, name) = segment else { return None };
            let id = manifest.objects.get(*index as usize)?.id;
            if !name.is_empty() {
                return Some((name.clone(), id));
            }
            unnamed += 1;
            Some((place_key(&file.path, unnamed), id))
        })
    })
}

/// The key of an object that is no tensor. Names of tensors have no line ends, mostly.
fn place_key(path: &str, number: usize) -> String {
    format!("{path}\n{number}")
}

impl Repository {
    /// Commits a file or the files of a folder.
    pub fn commit(&self, path: impl AsRef<Path>, options: &CommitOptions<'_>) -> Result<Committed> {
        let path = path.as_ref();
        if let (Ok(root), Ok(folder)) = (self.root().canonicalize(), path.canonicalize())
            && root.starts_with(folder)
        {
            return Err(
                Error::invalid("this folder contains the repository: commit another folder").in_file(path)
            );
        }
        retried(|| {
            let mut files = Vec::new();
            for (name, from) in cut::files(path, &options.exclude)? {
                check_path(&name).map_err(|error| error.in_file(&from))?;
                files.push(cut::open(name, &from)?);
            }
            self.commit_files(files, options)
        })
    }

    /// Commits tensors in memory as the `.safetensors` file of that name that they would be.
    pub fn commit_tensors(
        &self,
        name: &str,
        tensors: &TensorList<'_>,
        options: &CommitOptions<'_>,
    ) -> Result<Committed> {
        check_path(name)?;
        retried(|| self.commit_files(vec![cut::tensor_file(name.to_owned(), tensors)?], options))
    }

    pub(crate) fn commit_files(
        &self,
        files: Vec<FileInput<'_>>,
        options: &CommitOptions<'_>,
    ) -> Result<Committed> {
        let branch = options.branch.as_deref().unwrap_or(MAIN);
        check_ref_name(branch)?;
        if let Some(tag) = &options.tag {
            check_ref_name(tag)?;
            if refs::last(&self.store, RefKind::Tag, tag)?.is_some_and(|entry| entry.commit.is_some()) {
                return Err(Error::invalid(format!(
                    "the tag {tag:?} exists already: choose another name, or move it (`ztensor repo tag --force`)"
                )));
            }
        }
        let mut extra = Vec::new();
        for parent in &options.parents {
            extra.push(self.resolve(parent)?);
        }
        let head = refs::last(&self.store, RefKind::Branch, branch)?;
        let head = head.and_then(|entry| entry.commit);
        expect(options, branch, head)?;
        let mut nearest: Vec<RecordId> = Vec::new();
        for base in &options.bases {
            nearest.push(self.resolve(base)?);
        }
        nearest.splice(0..0, head.into_iter().chain(extra.iter().copied()));
        let made = self.store_files(files, &nearest, options)?;
        self.publish(branch, &extra, made, options)
    }

    /// Stores what is not there yet, and says what the manifest is.
    fn store_files(
        &self,
        files: Vec<FileInput<'_>>,
        nearest: &[RecordId],
        options: &CommitOptions<'_>,
    ) -> Result<Draft> {
        let (known, mut sizes) = self.known_objects(true)?;
        let mut namesakes: HashMap<String, Vec<ContentId>> = HashMap::new();
        for id in nearest {
            let manifest = match self.read_commit(id).and_then(|commit| self.read_manifest(&commit.manifest))
            {
                Ok(manifest) => manifest,
                // Forgotten: its objects may be gone.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            for (key, id) in keys(&manifest) {
                let list = namesakes.entry(key).or_default();
                if known.contains_key(&id) && !list.contains(&id) {
                    list.push(id);
                }
            }
        }
        let sketches = Sketches::new(&known);
        let set = ObjectSet::new(&self.store, known);
        let (effort, compressors) = (options.effort, Compressors::default());
        let chooser = Chooser { set: &set, sketches, namesakes, effort, compressors };
        let mut draft = Draft::default();
        let mut packs = PackWriter::new(&self.store);
        let mut items: Vec<(u64, (usize, String, Piece<'_>))> = Vec::new();
        for (index, file) in files.into_iter().enumerate() {
            let mut unnamed = 0;
            draft.manifest.files.push(FileEntry {
                path: file.path.clone(),
                executable: file.executable,
                segments: Vec::new(),
            });
            for piece in file.pieces {
                let key = match &piece.kind {
                    PieceKind::Tensor(name, ..) | PieceKind::Blocks(name, ..) => name.clone(),
                    kind if is_literal(kind, piece.content.len()) => String::new(),
                    _ => {
                        unnamed += 1;
                        place_key(&file.path, unnamed)
                    }
                };
                items.push((piece.content.len(), (index, key, piece)));
            }
        }
        let threads = parallel::resolve(options.threads);
        let most = ENCODED_AHEAD * threads as u64;
        let total = items.iter().map(|(len, _)| *len).fold(0, u64::saturating_add).min(most);
        let claimed: Mutex<HashSet<ContentId>> = Mutex::default();
        let pool = BufferPool::default();
        let make = |(index, key, piece): (usize, String, Piece<'_>)| {
            let len = piece.content.len();
            let threads = parallel::share(threads, len, total);
            let made = piece
                .content
                .with_bytes(&pool, |bytes| self.make(&chooser, &claimed, key, piece.kind, bytes, threads))?;
            advance(options.observer, len)?;
            Ok((index, made))
        };
        let mut numbers: HashMap<ContentId, u32> = HashMap::new();
        parallel::in_order(threads, items, most, make, |(file, made)| {
            let segments = &mut draft.manifest.files[file].segments;
            match made {
                Made::Literal(bytes) => match segments.last_mut() {
                    Some(Segment::Literal(before)) => before.extend_from_slice(&bytes),
                    _ => segments.push(Segment::Literal(bytes)),
                },
                Made::Object(id, of, name, encoded) => {
                    let next = draft.manifest.objects.len() as u32;
                    let number = *numbers.entry(id).or_insert(next);
                    if number == next {
                        let len = of.len()?;
                        draft.manifest.objects.push(ObjectEntry { id, of, len });
                    }
                    draft.tensors += u64::from(!name.is_empty());
                    segments.push(Segment::Object(number, name));
                    match encoded {
                        None => draft.same += 1,
                        Some(encoded) => {
                            match encoded.bytes {
                                EncodedForm::Whole(..) => draft.whole += 1,
                                EncodedForm::Delta { .. } => draft.deltas += 1,
                                EncodedForm::Cast { .. } => draft.casts += 1,
                            }
                            draft.new.insert(id, Arc::new(packs.add(&id, &encoded)?));
                        }
                    }
                }
            }
            Ok(())
        })?;
        draft.stored = packs.written;
        sizes.extend(packs.finish()?);
        let mut objects = set.objects().clone();
        objects.extend(draft.new.iter().map(|(id, stored)| (*id, stored.clone())));
        let needed = index::closure(&objects, draft.manifest.objects.iter().map(|object| object.id));
        draft.objects = objects.into_iter().filter(|(id, _)| needed.contains(id)).collect();
        let (manifest, stored) = draft.manifest.encode()?;
        draft.id = manifest;
        draft.stored += stored.len() as u64;
        draft.encoded = stored;
        draft.places = locations::stored(&draft.objects, &sizes)?;
        Ok(draft)
    }

    /// What becomes of one piece.
    fn make(
        &self,
        chooser: &Chooser<'_>,
        claimed: &Mutex<HashSet<ContentId>>,
        key: String,
        kind: PieceKind,
        bytes: &[u8],
        threads: usize,
    ) -> Result<Made> {
        if is_literal(&kind, bytes.len() as u64) {
            return Ok(Made::Literal(bytes.to_vec()));
        }
        let (of, name, blocks) = match kind {
            PieceKind::Tensor(name, dtype, shape) => (ObjectType::of(dtype, &shape, bytes), name, None),
            PieceKind::Blocks(name, blocks, shape) => {
                (ObjectType::bytes(bytes.len() as u64), name, Some((blocks, shape)))
            }
            _ => (ObjectType::bytes(bytes.len() as u64), String::new(), None),
        };
        let id = of.id(bytes, threads)?;
        let new = !chooser.set.objects().contains_key(&id)
            && claimed.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
        let encoded = match new {
            true => {
                let what = match blocks {
                    Some((blocks, shape)) => ObjectKind::Blocks(blocks, shape),
                    None if name.is_empty() => ObjectKind::Other,
                    None => ObjectKind::Tensor,
                };
                let encoded = chooser.encode(&key, of.clone(), bytes, &what, threads);
                let named = |error: Error| if name.is_empty() { error } else { error.in_tensor(&*name) };
                Some(Box::new(encoded.map_err(named)?))
            }
            false => None,
        };
        Ok(Made::Object(id, of, name, encoded))
    }

    /// Makes a commit of what was stored, and lets the branch follow it.
    fn publish(
        &self,
        branch: &str,
        extra: &[RecordId],
        draft: Draft,
        options: &CommitOptions<'_>,
    ) -> Result<Committed> {
        let mut commit = Commit {
            manifest: draft.id,
            message: options.message.clone(),
            author: options.author.clone(),
            time: refs::now(),
            files: draft.manifest.files.len() as u64,
            tensors: draft.tensors,
            bytes: draft.manifest.len(),
            stored: draft.stored,
            metadata: options.metadata.clone(),
            ..Commit::default()
        };
        finish(options.observer)?;
        let mut known = 0;
        for attempt in 0..ATTEMPTS {
            let before = refs::last_from(&self.store, RefKind::Branch, branch, known)?;
            let head = before.as_ref().and_then(|entry| entry.commit);
            expect(options, branch, head)?;
            commit.parents = head.into_iter().collect();
            commit.parents.extend(extra.iter().copied().filter(|parent| Some(*parent) != head));
            let (id, bytes) = commit.encode()?;
            let new = |name: String, bytes| SmallFile { name, bytes, replace: false };
            let files = [
                new(format!("{MANIFESTS}/{}", draft.id), &draft.encoded),
                SmallFile { name: locations::file(&draft.id), bytes: &draft.places, replace: true },
                new(format!("{COMMITS}/{id}"), &bytes),
            ];
            let written = if attempt == 0 { &files[..] } else { &files[2..] };
            self.store.write_in_order(written, options.threads)?;
            let lock = self.store.lock(false)?;
            gc::check_kept(&self.store, &draft.id, &draft.objects)?;
            let number = before.map_or(0, |entry| entry.number);
            let to = Some((id, draft.id));
            let moved = refs::advance(&self.store, RefKind::Branch, branch, number, to, "commit")?;
            drop(lock);
            if moved.is_none() {
                known = number + 1;
                continue; // another writer was faster: its commit becomes the parent
            }
            if let Some(tag) = &options.tag {
                self.create_tag_at(tag, id, draft.id, false)?;
            }
            return Ok(Committed {
                id,
                branch: branch.to_owned(),
                parent: head,
                files: commit.files,
                tensors: commit.tensors,
                bytes: commit.bytes,
                stored: commit.stored,
                same: draft.same,
                deltas: draft.deltas,
                casts: draft.casts,
                whole: draft.whole,
            });
        }
        Err(refs::conflict(RefKind::Branch, branch))
    }

    /// All objects that may be built on, and the sizes of their packs. Writers may `merge` indexes meanwhile.
    pub(crate) fn known_objects(&self, merge: bool) -> Result<(Objects, PackSizes)> {
        let condemned = gc::condemned_packs(&self.store)?;
        let mut sizes = index::sizes(&self.store)?;
        sizes.retain(|name, _| !condemned.contains(&**name));
        let packs: Vec<Arc<str>> = sizes.keys().cloned().collect();
        let mut objects = index::load_merged(&self.store, &packs, merge)?;
        // Those that depend on what will go cannot be built on.
        let broken: Vec<ContentId> = {
            let whole = |id: &ContentId| {
                let mut at = *id;
                for _ in 0..=super::restore::MAX_DEPTH {
                    match objects.get(&at).map(|stored| stored.base()) {
                        None => return false,
                        Some(None) => return true,
                        Some(Some(base)) => at = base,
                    }
                }
                false
            };
            objects.keys().filter(|id| !whole(id)).copied().collect()
        };
        broken.iter().for_each(|id| drop(objects.remove(id)));
        Ok((objects, sizes))
    }
}

/// Commits again where garbage collection took what the new version was built on.
fn retried(commit: impl Fn() -> Result<Committed>) -> Result<Committed> {
    const TRIED: usize = 3;
    for _ in 1..TRIED {
        match commit() {
            Err(error) if error.rule() == Some(gc::COLLECTED) => {}
            done => return done,
        }
    }
    commit()
}

/// What is stored, and not visible yet.
#[derive(Default)]
struct Draft {
    id: RecordId,
    manifest: Manifest,
    new: Objects,
    /// All objects of the version, and those that they depend on.
    objects: Objects,
    /// The files of the manifest and of the places of its objects.
    encoded: Vec<u8>,
    places: Vec<u8>,
    tensors: u64,
    stored: u64,
    same: u64,
    deltas: u64,
    casts: u64,
    whole: u64,
}

fn is_literal(kind: &PieceKind, len: u64) -> bool {
    match kind {
        PieceKind::Tensor(..) | PieceKind::Blocks(..) => false,
        PieceKind::Header => len <= HEADER_LITERAL,
        PieceKind::Other => len <= OTHER_LITERAL,
    }
}

/// Refuses a branch that is not where the caller says.
fn expect(options: &CommitOptions<'_>, branch: &str, head: Option<RecordId>) -> Result<()> {
    match options.expected {
        Some(expected) if head != Some(expected) => Err(refs::conflict(RefKind::Branch, branch)),
        _ => Ok(()),
    }
}
