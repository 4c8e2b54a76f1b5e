//! Topics of `weft help` that aren't commands. `weft help COMMAND` is `weft COMMAND --help`, which
//! the parser prints.

use crate::catalogue;
use crate::cli::{DIR, EXIT_STATUS, HelpArgs};
use crate::discovery;
use crate::exit::{Exit, Failure};
use crate::output::print;
use types::{Errno, Error};

/// Prints a topic that isn't a command.
pub fn run(args: &HelpArgs) -> Result<(), Failure> {
    match args.words.as_slice() {
        [topic] if topic == EXIT_STATUS => print(&Exit::table()),
        [topic] if topic == DIR => print(discovery::RULES),
        words => {
            if let [name] = words
                && let Some(entry) = catalogue::entries().find(|entry| entry.name == name)
            {
                print(&entry.text());
                return Ok(());
            }
            let message = format!("there is no help for {:?}", words.join(" "));
            let error = Error::new(Errno::EINVAL, message).hint("weft help lists the commands");
            return Err(Failure { exit: Exit::Usage, error });
        }
    }
    Ok(())
}
