package wire

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

// A call is sent again for movingFor while its slot moves: a slot of ten thousand keys moves in less.
const (
	movingFor   = time.Second
	firstMoving = 10 * time.Millisecond
	lastMoving  = 100 * time.Millisecond
)

// Send calls send under a time-out. While a cluster moves the slot of its keys it calls send again, with pauses that double, for a
// second or the time-out at most: nothing was done then. If no server answers, a cluster's client learns anew who serves the slots.
func Send(ctx context.Context, rdb redis.UniversalClient, timeout time.Duration, send func(context.Context) error) error {
	end := time.Now().Add(min(movingFor, timeout))
	err := sendOnce(ctx, rdb, timeout, send)
	for pause := firstMoving; moving(err) && time.Now().Add(pause).Before(end); pause = min(2*pause, lastMoving) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		err = sendOnce(ctx, rdb, timeout, send)
	}
	return err
}

func sendOnce(ctx context.Context, rdb redis.UniversalClient, timeout time.Duration, send func(context.Context) error) error {
	bounded := within(ctx, timeout)
	err := send(bounded)
	follow(ctx, rdb, err)
	if err != nil && Ended(ctx) == nil && Ended(bounded) != nil {
		return fmt.Errorf("no answer within %s: %w", timeout, os.ErrDeadlineExceeded) // not the caller's own deadline
	}
	return err
}

// moving reports whether a call was refused because its slot moves from one master to another, with keys on both. Nothing was
// done. go-redis itself gives up within 50 ms.
func moving(err error) bool {
	return redis.HasErrorPrefix(err, "TRYAGAIN") || redis.HasErrorPrefix(err, "ASK ")
}

// follow has a cluster's client learn anew who serves which slots, after a call that no server answered. go-redis would go on
// dialling a master that is gone until its map is ClusterStateReloadInterval old, a minute by default. The client reloads in the
// background, once at a time. For other clients follow does nothing.
func follow(ctx context.Context, rdb redis.UniversalClient, err error) {
	if err == nil || errors.Is(err, context.Canceled) || redis.HasErrorPrefix(err, "") { // a server's own answer
		return
	}
	if cluster, ok := rdb.(interface{ ReloadState(ctx context.Context) }); ok {
		cluster.ReloadState(context.WithoutCancel(ctx))
	}
}

// bounded is a context with a deadline of its own and no timer: a timer would cost a third of what a single decision costs here.
// The client applies the deadline when it reads and writes (ContextTimeoutEnabled), and looks at Done before it tries again. It
// waits for Done only while it waits for a connection or between two tries, for times that it bounds itself.
type bounded struct {
	context.Context //nolint:containedctx // it is one
	deadline        time.Time
}

// within returns ctx with a deadline so long from now, or its own if that is sooner.
func within(ctx context.Context, timeout time.Duration) context.Context {
	deadline := time.Now().Add(timeout)
	if sooner, ok := ctx.Deadline(); ok && sooner.Before(deadline) {
		return ctx
	}
	return &bounded{Context: ctx, deadline: deadline}
}

func (b *bounded) Deadline() (time.Time, bool) { return b.deadline, true }

func (b *bounded) over() bool { return !time.Now().Before(b.deadline) }

func (b *bounded) Done() <-chan struct{} {
	if b.over() {
		return over
	}
	return b.Context.Done()
}

func (b *bounded) Err() error {
	if err := b.Context.Err(); err != nil {
		return err
	}
	if b.over() {
		return context.DeadlineExceeded
	}
	return nil
}

var over = make(chan struct{})

func init() { close(over) }

// ErrUnavailable is wrapped by every error that says that Redis could not decide: it was down, too slow, full, read-only, or
// refused the call.
var ErrUnavailable = errors.New("throttle: Redis cannot decide")

// Unavailable returns the error of a call that failed: it wraps ErrUnavailable and names what the call was to do for a provider
// or scope. If the caller's context has ended, the error is that of the context.
func Unavailable(ctx context.Context, verb, scope string, err error) error {
	if dead := Ended(ctx); dead != nil {
		return dead
	}
	return fmt.Errorf("%w: %s %q: %w", ErrUnavailable, verb, scope, err)
}

// Ended returns the error of a context that has ended. A deadline that has passed counts before the context's own timer fires:
// the client, whose connections have the same deadline, may be quicker.
func Ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if deadline, has := ctx.Deadline(); has && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return nil
}
