package policystore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// Preview returns the policy that would be in force after a Holder of a starting process had published
// p. It changes nothing. If p is superseded, was imported over or may not be published, that is the
// current policy. A nil p is no file. The error is ErrNone if there is neither, a *DamagedError, a
// *policy.Error if live changes do not fit p, or those of Store. Costs some round trips.
func (s *Store) Preview(ctx context.Context, p *policy.Policy) (*policy.Policy, error) {
	v, err := s.Current(ctx)
	if errors.Is(err, ErrNone) && p != nil {
		return p, nil
	} else if err != nil {
		return nil, err
	}
	now, err := s.Time(ctx)
	if err != nil {
		return nil, err
	}
	base, err := s.base(ctx, s.rdb, v)
	if err != nil {
		return nil, err
	}
	if p != nil && v.Imported == nil {
		counts, err := s.wouldCount(ctx, v, p, now)
		if err != nil {
			return nil, err
		}
		if counts {
			base = p
		}
	}
	then, _, err := v.policy(base, now)
	return then, err
}

// wouldCount tells whether a file would take the place of that of a version, as Holder.Publish decides.
func (s *Store) wouldCount(ctx context.Context, v Version, p *policy.Policy, now time.Time) (bool, error) {
	sum := sumOf(limitsyaml.Format(p))
	became := becomes(&draft{Version: v}, sum, nil, "")
	if became == FileSuperseded {
		held, err := s.held(ctx)
		if err != nil {
			return false, err
		}
		if _, traced := held[v.fileSum()]; !traced && held.next(v, sum, now) {
			became = FileNew
		}
	}
	if became != FileNew {
		return false, nil
	}
	err := s.mayChange(ctx)
	if errors.Is(err, ErrNotPermitted) {
		return false, nil
	}
	return err == nil, err
}

// mayChange asks whether the Redis user may change the limits, and changes nothing: Redis looks at permissions when commands are
// queued, and gives the transaction up for a command without arguments. DISCARD would need one more permission. The error is
// ErrNotPermitted where it may not. Costs two round trips.
func (s *Store) mayChange(ctx context.Context) error {
	err := s.rdb.Watch(ctx, func(tx *redis.Tx) error {
		cmds, err := tx.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, command := range [][]any{
				{"multi"},
				{"hset", s.key, currentField, ""}, {"hdel", s.key, currentField}, {"pexpire", s.key, changesStay.Milliseconds()},
				{"hset"}, {"exec"},
			} {
				p.Do(ctx, command...)
			}
			return nil
		})
		for _, cmd := range cmds {
			if refused(cmd.Err()) {
				return cmd.Err()
			}
		}
		var answer redis.Error
		if errors.As(err, &answer) {
			return nil // that of the command without arguments
		}
		return err
	}, s.key)
	switch {
	case refused(err):
		return fmt.Errorf("%w: %w", ErrNotPermitted, err)
	case err != nil:
		return unavailable(ctx, "ask whether this user may change", err)
	}
	return nil
}
