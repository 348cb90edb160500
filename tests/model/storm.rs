//! What storms of calls do to a session, the same on every path.

use crate::rules::Few;
use kiln::model::{GenerateOptions, Session};

/// A call, or a few that belong together.
#[derive(Debug, Clone)]
pub(crate) enum Call {
    Append(Vec<u32>),
    Truncate(usize),
    Prefill,
    /// A copy takes the session's place.
    Fork,
    /// So many tokens of an answer that is dropped in its middle.
    Drop(usize),
    /// An answer of up to so many tokens that is cancelled behind the first.
    Cancel(usize),
    Generate(GenerateOptions),
    /// So many tokens of an answer under rules, which is dropped then.
    Constrained(GenerateOptions, Few, usize),
}

impl Call {
    /// The tokens that it gives, or its error's text.
    pub(crate) fn on(&self, session: &mut Session) -> Result<Vec<u32>, String> {
        let made: kiln::Result<Vec<u32>> = match self {
            Call::Append(ids) => session.append(ids).map(|()| Vec::new()),
            Call::Truncate(len) => {
                session.truncate(*len);
                Ok(Vec::new())
            }
            Call::Prefill => session.prefill().map(|()| Vec::new()),
            Call::Fork => session.fork().map(|copy| {
                *session = copy;
                Vec::new()
            }),
            Call::Drop(count) => session.generate(GenerateOptions::new(50)).by_ref().take(*count).collect(),
            Call::Cancel(count) => {
                let mut generation = session.generate(GenerateOptions::new(*count));
                let first = generation.next();
                generation.cancel_handle().cancel();
                assert_eq!(generation.count(), 0, "tokens after a cancel");
                first.transpose().map(|token| token.into_iter().collect())
            }
            Call::Generate(options) => session.generate(options.clone()).collect(),
            Call::Constrained(options, rules, count) => {
                session.generate(options.clone()).with_constraint(rules.clone()).take(*count).collect()
            }
        };
        made.map_err(|error| error.to_string())
    }
}
