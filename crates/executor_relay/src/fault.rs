//! Mistakes that the simulation must find.

base::mutants! {
    "executor_relay" {
        /// Frames for which there is no room are left out.
        DropWithoutRoom,
        /// Of the frames of a message, each is put by itself.
        PutOneByOne,
        /// When one direction ends, the other goes on.
        GoOnInOneDirection,
        /// When a message was sent, the one before it is sent again.
        Repeat,
    }
}
