// Package mailer is what an app has: code that asks a limiter, and a handler of asynq's. Its tests show how to test both.
//
//	go test ./examples/testing
package mailer

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// Sender sends mails, each as soon as the limits allow.
type Sender struct {
	Limiter interface {
		Wait(ctx context.Context, req throttle.Request) (throttle.Decision, error)
	}
	Deliver func(ctx context.Context, to string) error
}

// ErrLater is returned for a mail whose turn comes after the context's deadline.
var ErrLater = errors.New("mailer: the limits put this mail off")

// Send waits for the limits of a tenant and delivers a mail.
func (s *Sender) Send(ctx context.Context, tenant, to string) error {
	_, err := s.Limiter.Wait(ctx, throttle.Request{Scope: policy.JoinScope("mail", tenant)})
	if errors.Is(err, throttle.ErrMaxWait) {
		return fmt.Errorf("%w: %s", ErrLater, to)
	}
	if err != nil {
		return err
	}
	return s.Deliver(ctx, to)
}

// Handler delivers the mail that a task names. It knows of no limits: a worker wraps it.
func Handler(deliver func(ctx context.Context, to string) error) asynq.HandlerFunc {
	return func(ctx context.Context, task *asynq.Task) error {
		to := string(task.Payload())
		if !strings.Contains(to, "@") {
			return fmt.Errorf("%q is no address: %w", to, asynq.SkipRetry)
		}
		return deliver(ctx, to)
	}
}
