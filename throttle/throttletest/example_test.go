package throttletest_test

import (
	"context"
	"errors"
	"fmt"

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
