package wire

import (
	"context"
	"time"
)

// bounded is a context with a deadline of its own and no timer, which for a single
// decision would be a third of what it costs here beside its command. The client
// heeds a deadline where it reads and writes (ContextTimeoutEnabled), and asks Done
// before it tries again; it watches Done only while it waits for a connection or
// between two tries, for times that it bounds itself.
type bounded struct {
	context.Context //nolint:containedctx // it is one
	deadline        time.Time
}

// Within returns ctx with a deadline so long from now, or its own if that is sooner.
func Within(ctx context.Context, timeout time.Duration) context.Context {
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

var over = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()
