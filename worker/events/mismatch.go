package events

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policystore"
)

const (
	// settled is how long after a change of the limits, or its own start, a process checks that all processes have the same: one that
	// was killed counts for 45 seconds. lookAgain is the time until a second check, before it reports.
	settled       = time.Minute
	lookAgain     = 5 * time.Second
	mismatchStays = 24 * time.Hour
)

// watchLimits notices that processes have different limits. It checks only after a change, and after its own start.
func (e *Events) watchLimits(ctx context.Context, store *policystore.Store, limiter *throttle.Limiter) {
	changed, changes := limiter.PolicyChanged(), false
	timer := time.NewTimer(settled)
	defer timer.Stop()
	for {
		select {
		case <-changed:
			changed, changes = limiter.PolicyChanged(), true
			timer.Reset(settled)
		case <-timer.C:
			e.lookForMismatch(ctx, store, changes)
		case <-ctx.Done():
			return
		}
	}
}

// lookForMismatch reports processes that are behind the newest version in force at two checks.
func (e *Events) lookForMismatch(ctx context.Context, store *policystore.Store, changes bool) {
	version, first, err := behind(ctx, store, changes)
	if err != nil || len(first) == 0 {
		return
	}
	if !sleep(ctx, lookAgain) {
		return
	}
	again, second, err := behind(ctx, store, changes)
	if err != nil || again != version {
		return // the limits have changed: there will be another check
	}
	var names []string
	for id, name := range second {
		if first[id] != "" && len(names) < named {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) > 0 {
		e.notice(noticed{
			event: Event{Kind: Mismatch, Version: version, Behind: names},
			about: string(Mismatch) + "\x00" + strconv.FormatInt(version, 10), stays: mismatchStays,
		})
	}
}

// behind returns the newest version in force, and the processes, by id, that have another. Those that follow no changes count once
// there was one.
func behind(ctx context.Context, store *policystore.Store, changes bool) (version int64, list map[string]string, err error) {
	all, err := store.Processes(ctx)
	if err != nil {
		return 0, nil, err
	}
	for _, p := range all {
		version = max(version, p.Version)
	}
	list = map[string]string{}
	for _, p := range all {
		name := fmt.Sprintf("%s on %s (process %d)", p.App, p.Host, p.PID)
		switch {
		case p.Follows && p.Version != version:
			list[p.ID] = fmt.Sprintf("%s with version %d", name, p.Version)
		case !p.Follows && changes && version > 0:
			list[p.ID] = name + " with the limits of its start"
		}
	}
	return version, list, nil
}
