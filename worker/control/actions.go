package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/throttle"
)

// KeptActions is how many Actions are kept: the oldest go first.
const KeptActions = 1000

// Action is a change of waiting tasks. It is recorded beside the versions of the limits.
type Action struct {
	At   time.Time `json:"at"`
	By   string    `json:"by"`
	Via  string    `json:"via,omitempty"` // such as "page" or "cli"
	Verb string    `json:"verb"`          // run, move, cancel, clear, priority, or of tasks that failed retry or delete
	// Scope, Queue and Type selected the tasks; Scope is empty if ids did. Scopes are those that the tasks spent from, 20 at most.
	Scope  string   `json:"scope,omitempty"`
	Queue  string   `json:"queue,omitempty"`
	Type   string   `json:"type,omitempty"`
	Scopes []string `json:"scopes,omitempty"`
	To     string   `json:"to,omitempty"` // the scope that tasks were moved to, or their new priority
	Reason string   `json:"reason,omitempty"`
	// Changed is how many tasks were changed, and Left how many were left as they were. TaskIDs are the ids of the first ten.
	Changed int      `json:"changed"`
	Left    int      `json:"left,omitempty"`
	TaskIDs []string `json:"task_ids,omitempty"`
}

// recordAction records an Action, at the time of Redis. The last 1,000 are kept, for 366 days after the newest. A Redis user that may change
// tasks and not the limits records none. The error wraps throttle.ErrUnavailable. Costs two round trips.
func (s *Service) recordAction(ctx context.Context, a Action) (err error) {
	if a.At, err = s.store.Time(ctx); err != nil {
		return err
	}
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	_, err = s.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.RPush(ctx, s.actionsKey(), text)
		p.LTrim(ctx, s.actionsKey(), -KeptActions, -1)
		p.PExpire(ctx, s.actionsKey(), 366*24*time.Hour)
		return nil
	})
	if err != nil && !denied(err) {
		return fmt.Errorf("%w: record a change of tasks: %w", throttle.ErrUnavailable, err)
	}
	return nil
}

// denied reports whether Redis denied its user a permission, perhaps to a command before EXEC.
func denied(err error) bool {
	return redis.HasErrorPrefix(err, "NOPERM") || redis.HasErrorPrefix(err, "EXECABORT")
}

// ErrActionsHidden is the error for a Redis user that may not read the recorded Actions.
var ErrActionsHidden = errors.New("the Redis user may not read who changed waiting tasks")

// AllActions returns the recorded Actions, newest first, for any actor: see VisibleActions. One that cannot be decoded, since a later release
// wrote it, is left out. The error is ErrActionsHidden, or wraps throttle.ErrUnavailable. Costs one round trip.
func (s *Service) AllActions(ctx context.Context) ([]Action, error) {
	if s.store == nil {
		return nil, errNoStore
	}
	all, err := redisread.One(ctx, s.rdb, func(p redis.Pipeliner) *redis.StringSliceCmd { return p.LRange(ctx, s.actionsKey(), 0, -1) })
	if denied(err) {
		return nil, fmt.Errorf("%w: %w", ErrActionsHidden, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: read who changed tasks: %w", throttle.ErrUnavailable, err)
	}
	list := make([]Action, 0, len(all.Val()))
	for _, text := range slices.Backward(all.Val()) {
		var a Action
		if json.Unmarshal([]byte(text), &a) == nil {
			list = append(list, a)
		}
	}
	return list, nil
}

func (s *Service) actionsKey() string { return cmp.Or(s.prefix, "hw") + ":limits:actions" }
