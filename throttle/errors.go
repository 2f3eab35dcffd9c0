package throttle

import (
	"errors"

	"github.com/headway-go/headway/internal/wire"
)

var (
	// ErrUnavailable is wrapped by every error that says that Redis could not decide: it was down, too slow, full, read-only, or
	// refused the call. Nothing was decided, and the rules' failure policies had no answer either.
	ErrUnavailable = wire.ErrUnavailable

	// ErrLeaseLost is the cause of a run's context whose lease could not be renewed in time: another run
	// may have its places under a concurrency rule.
	ErrLeaseLost = errors.New("throttle: the run's lease is lost")

	// ErrMaxWait is wrapped by every error that says that a wait would be longer than a rule's max_wait or
	// the context's deadline allows. Nothing was charged.
	ErrMaxWait = errors.New("throttle: the wait is longer than allowed")
)
