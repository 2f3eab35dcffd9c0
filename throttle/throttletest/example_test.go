package throttletest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
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
	if errors.Is(err, throttle.ErrPatience) {
		return fmt.Errorf("put off %q", text)
	}
	return err
}

// A stand-in with scripted answers shows what a program does when it is limited.
func ExampleScript() {
	limiter := throttletest.Script(throttletest.Allow(), throttletest.Fail(throttle.ErrPatience))
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

// A real limiter in a bubble of testing/synctest: 13 mails at 6 a minute take two
// minutes of the bubble's time and none of the reader's.
func ExampleNew() {
	test := func(t *testing.T) {
		limiter := throttletest.New(t, throttletest.Policy(t, `
limits:
  mail:
    rules:
      - {name: minute, algorithm: fixed-window, limit: 6, per: 1m}
`))
		s := &sender{limiter}
		began := time.Now()
		for range 13 {
			if err := s.send(t.Context(), "acme", "hello"); err != nil {
				t.Error(err)
			}
		}
		fmt.Println(time.Since(began))
	}
	// In a test of yours: func TestSender(t *testing.T) { synctest.Test(t, test) }
	testing.RunTests(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{
		{Name: "TestSender", F: func(t *testing.T) { synctest.Test(t, test) }},
	})
	// Output: 2m0s
}
