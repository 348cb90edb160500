//! One launch against many: what the decoder's paths ask of the driver for a token, and how fast they are on a GPU; and
//! how long prompts take.

use kiln::Model;
use kiln::model::{GenerateOptions, Numerics, PathChoice, Session, SessionOptions, Work};
use std::error::Error;
use std::panic::resume_unwind;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// What a path took for a prompt and the tokens it generated behind it.
pub(crate) struct PathCost {
    pub(crate) name: &'static str,
    /// Tokens run, of the prompt and generated.
    pub(crate) tokens: u64,
    pub(crate) launches: u64,
    pub(crate) driver_calls: u64,
    /// Tokens generated in a second, without the prompt and the first of them, which warms up.
    pub(crate) rate: f64,
    pub(crate) ids: Vec<u32>,
    /// Modelled time of all kernels, on an emulator with a clock, and their number.
    pub(crate) microseconds: f64,
    pub(crate) kernels: usize,
    /// Counted, on the emulator: instructions of all lanes, and bytes in sectors of device memory read or written.
    pub(crate) counted: Option<(u64, u64)>,
}

/// What one session made of it: the path's name, its work, its ids, and seconds behind the first of them.
type Made = (&'static str, Work, Vec<u32>, f64);

fn generate(session: &mut Session, tokens: usize) -> kiln::Result<Made> {
    session.append(&[1, 2, 3])?;
    let mut begin = None;
    let mut ids = Vec::new();
    for id in session.generate(GenerateOptions::new(tokens)) {
        ids.push(id?);
        begin.get_or_insert_with(Instant::now);
    }
    let seconds = begin.map_or(0.0, |begin| begin.elapsed().as_secs_f64());
    Ok((session.path().0, session.work(), ids, seconds))
}

/// Generates `tokens` tokens behind a short prompt on a path, in so many sessions at once; `counting` is the model's device,
/// if it is one that counts.
pub(crate) fn run(
    model: &Model,
    path: PathChoice,
    numerics: Numerics,
    (tokens, sessions): (usize, usize),
    counting: Option<i32>,
) -> Result<PathCost, Box<dyn Error>> {
    if let Some(ordinal) = counting {
        kiln_emulator::clear_reports(ordinal);
    }
    let capacity = Some(model.shape().context.min(tokens as u32 + 16));
    let options = SessionOptions::default().with_numerics(numerics).with_path(path).with_capacity(capacity);
    let mut all: Vec<Session> = (0..sessions).map(|_| model.session(options)).collect::<kiln::Result<_>>()?;
    let made: kiln::Result<Vec<Made>> = std::thread::scope(|scope| {
        let threads: Vec<_> = all.iter_mut().map(|session| scope.spawn(|| generate(session, tokens))).collect();
        let join = |thread: ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        threads.into_iter().map(join).collect()
    });
    // A launch that stays on the device is reported when it ends.
    drop(all);
    let made = made?;
    let (mut name, mut ids, mut work, mut rate) = ("", Vec::new(), Work::default(), 0.0);
    for (of, done, own, seconds) in made {
        work.tokens += done.tokens;
        work.launches += done.launches;
        work.other_calls += done.other_calls;
        rate += own.len().saturating_sub(1) as f64 / seconds.max(1e-9);
        if !ids.is_empty() && ids != own {
            return Err("sessions with the same prompt generated different ids".into());
        }
        (name, ids) = (of, own);
    }
    let counted = counting.map(|ordinal| {
        let reports = kiln_emulator::reports(ordinal);
        reports.iter().fold((0, 0), |(instructions, bytes), report| {
            let counters = &report.counters;
            (instructions + counters.lane_instructions, bytes + 32 * (counters.read_sectors + counters.write_sectors))
        })
    });
    let reports = counting.map(kiln_emulator::reports).unwrap_or_default();
    let timings = reports.iter().filter_map(|report| report.timing.as_ref());
    let microseconds = timings.map(|timing| timing.nanoseconds / 1e3).sum();
    Ok(PathCost {
        name,
        counted,
        tokens: work.tokens,
        launches: work.launches,
        driver_calls: work.launches + work.other_calls,
        rate,
        ids,
        microseconds,
        kernels: reports.len(),
    })
}

/// From a prompt of so many ids to the first token behind it, each time in a session of its own: so often, the quickest
/// first. One more run before them loads what is loaded when it is first used.
pub(crate) fn first_token(model: &Model, ids: usize, times: usize) -> Result<Vec<Duration>, Box<dyn Error>> {
    let options = SessionOptions::default().with_numerics(Numerics::Fast).with_capacity(Some(ids as u32 + 1));
    let mut took = Vec::new();
    for run in 0..=times {
        let mut session = model.session(options)?;
        // No prompt begins as another did: nothing of it may be kept.
        let id = |place: usize| ((place + run) * 7919 % model.shape().vocab as usize) as u32;
        session.append(&(0..ids).map(id).collect::<Vec<u32>>())?;
        let begin = Instant::now();
        let first = session.generate(GenerateOptions::new(1)).next().ok_or("no token follows the prompt")?;
        first?;
        took.push(begin.elapsed());
    }
    took.remove(0);
    took.sort();
    Ok(took)
}
