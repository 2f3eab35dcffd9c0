package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/control"
)

// service answers and acts over the limits that are in Redis now, and over none where there are none yet, or none that can be read.
func (c *limitsCommand) service(ctx context.Context) (*control.Service, error) {
	return serviceOf(ctx, c.rdb, c.store)
}

func serviceOf(ctx context.Context, rdb redis.UniversalClient, store *policystore.Store) (*control.Service, error) {
	p, err := store.Now(ctx)
	if errors.Is(err, policystore.ErrNone) || errors.As(err, new(*policystore.DamagedError)) {
		p, err = policy.New("", nil)
	}
	if err != nil {
		return nil, err
	}
	limiter, err := throttle.New(rdb, p, throttle.Config{})
	if err != nil {
		return nil, err
	}
	return control.New(control.Config{Redis: rdb, Limiter: limiter, Store: store}), nil
}

// apply makes a change as the flags have it, and prints it.
func (c *limitsCommand) apply(ctx context.Context, change control.Change) error {
	if c.dry {
		return c.preview(ctx, change)
	}
	made, err := c.change(ctx, change)
	return c.tell(ctx, made, err)
}

// change makes a change as the flags have it.
func (c *limitsCommand) change(ctx context.Context, change control.Change) (policystore.Made, error) {
	service, err := c.service(ctx)
	if err != nil {
		return policystore.Made{}, err
	}
	made, err := service.Apply(ctx, atCommandLine(c.as), c.asked(change))
	return made, c.refused(err)
}

// asked is a change with what the flags say.
func (c *limitsCommand) asked(change control.Change) control.Change {
	change.Reason, change.For, change.IfVersion, change.Force = c.reason, c.lasts, c.version, c.force
	return change
}

// refused adds to a refusal of the service what to do about it.
func (c *limitsCommand) refused(err error) error {
	if unknown := new(control.UnknownScopeError); errors.As(err, &unknown) {
		return c.unknown(unknown)
	}
	return err
}

// previewReport is what -dry-run prints; docs/json.md has its fields.
type previewReport struct {
	DryRun  bool                `json:"dry_run"`
	Version int64               `json:"version"`
	Rules   int                 `json:"rules"`
	Diff    []differenceReport  `json:"diff,omitempty"`
	Resets  []policystore.Reset `json:"resets,omitempty"`
	Effect  control.Effect      `json:"effect"`
}

// preview prints what a change would do.
func (c *limitsCommand) preview(ctx context.Context, change control.Change) error {
	service, err := c.service(ctx)
	if err != nil {
		return err
	}
	p, err := service.Preview(ctx, atCommandLine(c.as), c.asked(change))
	if err != nil {
		return c.refused(err)
	}
	line := fmt.Sprintf("dry run over version %d: nothing was changed", p.Version)
	for _, d := range p.Differences {
		line += "\n" + differenceLines(d, "  ")
	}
	for _, r := range p.Resets {
		line += fmt.Sprintf("\n  %s %s would be reset; it has counted %s", cli.Quote(r.Scope), cli.Quote(r.Rule), usedText(r))
	}
	line += "\n  " + p.Effect.String()
	return c.print(previewReport{true, p.Version, len(p.Differences), differenceReports(p.Differences), p.Resets, p.Effect}, line)
}

// unknown says what to do about a scope that the limits do not name.
func (c *limitsCommand) unknown(e *control.UnknownScopeError) error {
	try := "worker limits list, or -force to do it anyway"
	if e.Near != "" {
		try = "worker limits " + c.verb + " … -force, if " + cli.Quote(e.Name) + " is meant"
	}
	return &cli.Error{What: plainly(e), Try: try, Err: e}
}
