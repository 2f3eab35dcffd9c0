package cli

import "time"

// DefaultMaxTimeout is how long a run may take at most, unless a worker was told otherwise.
const DefaultMaxTimeout = 10 * time.Minute
