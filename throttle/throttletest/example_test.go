package throttletest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/throttletest"
)

// sender is a program's own type; it accepts what it needs of a limiter.
type sender struct {
	limiter interface {
		Wait(ctx context.Context, req throttle.Request) (throttle.Decision, error)
	}
}

func (s *sender) send(ctx context.Context, tenant, text string) error {
	_, err := s.limiter.Wait(ctx, throttle.Request{Scope: "mail/" + tenant})
	if errors.Is(err, throttle.ErrMaxWait) {
		return fmt.Errorf("put off %q", text)
	}
	return err
}

// A stand-in with scripted answers shows what a program does when it is limited.
func ExampleScript() {
	limiter := throttletest.Script(throttletest.Allow(), throttletest.Fail(throttle.ErrMaxWait))
	s := &sender{limiter}

	fmt.Println(s.send(context.Background(), "acme", "hello"))
	fmt.Println(s.send(context.Background(), "acme", "hello again"))
	for _, req := range limiter.Requests() {
		fmt.Println("asked for", req.Cost, "of", req.Scope)
	}
	// Output:
	// <nil>
	// put off "hello again"
	// asked for 1 of mail/acme
	// asked for 1 of mail/acme
}

const mails = `
limits:
  mail:
    rules:
      - {name: minute, algorithm: fixed-window, limit: 6, per: 1m}
`

// t is a *testing.T where there is none; a test gives its own.
type t struct{ cleanups []func() }

func (*t) Helper()                           {}
func (t *t) Cleanup(f func())                { t.cleanups = append(t.cleanups, f) }
func (*t) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (t *t) end() {
	for _, f := range slices.Backward(t.cleanups) {
		f()
	}
}

// A real limiter without a bubble: the test moves the clock.
func ExampleNewWithRedis() {
	t := &t{}
	defer t.end()
	limiter, redis := throttletest.NewWithRedis(t, throttletest.Policy(t, mails), throttle.Config{StartTolerance: -1})
	ask := func(n int) {
		allowed := 0
		for range n {
			if d, err := limiter.Allow(context.Background(), "mail/acme"); err == nil && d.Allowed {
				allowed++
			}
		}
		fmt.Println(allowed, "of", n)
	}

	redis.Advance(0) // from now on only the test moves the clock
	ask(7)
	redis.Advance(time.Minute)
	ask(7)
	redis.Close()
	ask(7)
	// Output:
	// 6 of 7
	// 6 of 7
	// 0 of 7
}
