package cli

import "time"

// DefaultMaxTimeout is how long a run may take at most, unless the worker has another -max-timeout.
const DefaultMaxTimeout = 10 * time.Minute
