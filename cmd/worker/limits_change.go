package main

import (
	"context"
	"errors"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/internal/control"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// service answers and acts over the limits that are in Redis now, and over none where there are none yet, or none that can be read.
func (c *limitsCommand) service(ctx context.Context) (*control.Service, error) {
	p, err := c.store.Now(ctx)
	if errors.Is(err, policystore.ErrNone) || errors.As(err, new(*policystore.DamagedError)) {
		p, err = policy.New("", nil)
	}
	if err != nil {
		return nil, err
	}
	limiter, err := throttle.New(c.rdb, p, throttle.Config{})
	if err != nil {
		return nil, err
	}
	return control.New(control.Config{Redis: c.rdb, Limiter: limiter, Store: c.store}), nil
}

// apply makes a change as the flags have it, and prints it.
func (c *limitsCommand) apply(ctx context.Context, change control.Change) error {
	made, err := c.change(ctx, change)
	return c.tell(ctx, made, err)
}

// change makes a change as the flags have it.
func (c *limitsCommand) change(ctx context.Context, change control.Change) (policystore.Made, error) {
	service, err := c.service(ctx)
	if err != nil {
		return policystore.Made{}, err
	}
	change.Reason, change.For, change.IfVersion, change.Force = c.reason, c.lasts, c.version, c.force
	done, err := service.Apply(ctx, atCommandLine(c.as), change)
	if unknown := new(control.UnknownScopeError); errors.As(err, &unknown) {
		return done.Made, c.unknown(unknown)
	}
	return done.Made, err
}

// unknown says what to do about a scope that the limits do not name.
func (c *limitsCommand) unknown(e *control.UnknownScopeError) error {
	try := "worker limits list, or -force to do it anyway"
	if e.Near != "" {
		try = "worker limits " + c.verb + " … -force, if " + cli.Quote(e.Name) + " is meant"
	}
	return &cli.Error{What: plainly(e), Try: try, Err: e}
}
