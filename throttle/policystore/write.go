package policystore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// draft is a version that is being made.
type draft struct {
	Version
	texts  map[string][]byte // of its new sources, by their sums
	base   *policy.Policy    // what the version before lies over
	number int64             // of the version before
	policy *policy.Policy    // what it comes to
	was    Version           // the version before
	over   *policy.Policy    // what it lies over itself
}

// tries is how often a change is retried after faster concurrent changes.
const tries = 20

// edit makes the next version from the current one, and writes it. If another change is faster, it
// starts over from the version that is current then. It returns the draft with every error of change
// too.
func (s *Store) edit(ctx context.Context, e Edit, change func(v *draft, policy *policy.Policy, now time.Time) error) (draft, error) {
	if err := e.check(); err != nil {
		return draft{}, err
	}
	var v draft
	for range tries {
		var declined error // says itself what is wrong
		err := s.rdb.Watch(ctx, func(tx *redis.Tx) error {
			if v, declined = s.next(ctx, tx, e, change); declined != nil {
				return declined
			}
			if e.DryRun {
				return nil
			}
			return s.write(ctx, tx, &v)
		}, s.key)
		switch {
		case refused(err):
			return v, fmt.Errorf("%w: %w", ErrNotPermitted, err)
		case err == nil || declined != nil:
			return v, declined
		case !errors.Is(err, redis.TxFailedErr):
			return v, unavailable(ctx, "change", err)
		}
	}
	now, err := s.Current(ctx)
	if err != nil {
		return v, err
	}
	return v, &ConflictError{Now: now}
}

// check refuses an edit without an author, and a reason that a history could not print.
func (e Edit) check() error {
	switch {
	case strings.TrimSpace(e.By) == "" || !printable(e.By):
		return fmt.Errorf("policystore: a change needs somebody whom it is by, in printable characters, and %.40q is nobody", e.By)
	case len(e.Reason) > MaxReason:
		return &ReasonError{fmt.Sprintf("is %d bytes long; the most is %d", len(e.Reason), MaxReason)}
	case len(e.Via) > maxVia || !printable(e.Via):
		return fmt.Errorf("policystore: the way of a change is up to %d bytes of printable text, and not %.80q", maxVia, e.Via)
	case !printable(e.Reason):
		return &ReasonError{"holds a character that cannot be printed; write it on one line"}
	}
	return nil
}

// ReasonError is the error for an invalid Edit.Reason.
type ReasonError struct{ Why string }

func (e *ReasonError) Error() string { return "policystore: the reason " + e.Why }

func printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// next makes the next version. All that it rests on is read on the connection that
// watches.
func (s *Store) next(ctx context.Context, tx *redis.Tx, e Edit, change func(*draft, *policy.Policy, time.Time) error) (draft, error) {
	now, err := s.now(ctx, tx)
	if err != nil {
		return draft{}, err
	}
	before, hash, err := s.before(ctx, tx)
	if err != nil {
		return draft{}, err
	}
	user, err := whoAmI(ctx, tx)
	if err != nil {
		return draft{}, err
	}
	v := draft{Version: before.clone(), texts: map[string][]byte{}, number: before.Number}
	if e.IfVersion > 0 && e.IfVersion != before.Number {
		return v, &ConflictError{Want: e.IfVersion, Now: before}
	}
	if v.base, err = s.base(ctx, tx, before); err != nil {
		return v, err
	}
	v.User, v.was, v.Resets = user, before, nil
	policy, _, err := before.policy(v.base, now)
	if err != nil {
		return v, &DamagedError{before.Number, err}
	}
	if err := change(&v, policy, now); err != nil {
		v.Version, v.policy = before, policy
		return v, err
	}
	v.Number, v.At, v.InForce, v.By, v.Reason, v.Via = before.Number+1, now, now.Add(Notice), e.By, e.Reason, e.Via
	v.Prev = hash
	v.expire(now)
	v.Edited = v.Edited || v.Imported != nil || v.live() > 0 || len(v.Resets) > 0
	return v, s.check(ctx, tx, &v, now)
}

// before returns the current version, the zero Version for none, and its hash as it was when it was
// written: if its text was changed since, the chain shows it.
func (s *Store) before(ctx context.Context, tx *redis.Tx) (v Version, hash string, err error) {
	mark, err := s.mark(ctx, tx)
	if err != nil || mark == "" {
		return v, "", err
	}
	if v, err = s.marked(ctx, tx, mark); err != nil {
		return v, "", err
	}
	if _, hash, err = readMark(mark); hash == "" {
		hash = v.Hash
	}
	return v, hash, err
}

// whoAmI is the Redis user of the connection, empty where the server does not say.
func whoAmI(ctx context.Context, tx *redis.Tx) (string, error) {
	user, err := tx.ACLWhoAmI(ctx).Result()
	var answer redis.Error
	if errors.As(err, &answer) {
		return "", nil // it knows no users, or this one may not ask
	}
	if err != nil {
		return "", unavailable(ctx, "ask for the user who changes", err)
	}
	return user, nil
}

// check works out what a draft comes to, and refuses one that says what limits may not.
func (s *Store) check(ctx context.Context, tx *redis.Tx, v *draft, now time.Time) error {
	source := v.source()
	var pol *policy.Policy
	var err error
	if source != nil && v.texts[source.Sum] != nil {
		pol, err = limitsyaml.Parse("the limits", v.texts[source.Sum])
	} else {
		pol, err = s.base(ctx, tx, v.Version)
	}
	if err != nil {
		return err
	}
	v.over = pol
	v.policy, _, err = v.Version.policy(pol, now)
	return err
}

// write writes a draft, and lets the oldest go. What is watched has not changed since.
func (s *Store) write(ctx context.Context, tx *redis.Tx, v *draft) error {
	text, err := v.encode()
	if err != nil {
		return err
	}
	v.Hash = sumOf([]byte(text))
	all, err := tx.HGetAll(ctx, s.key).Result()
	if err != nil {
		return err
	}
	gone := s.outlived(all, v, len(text))
	cmds, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
		for sum, source := range v.texts {
			p.HSet(ctx, s.key, sourceField+sum, source)
		}
		p.HSet(ctx, s.key, fieldOf(v.Number), text, currentField, markOf(v.Number, text))
		if len(gone) > 0 {
			p.HDel(ctx, s.key, gone...)
		}
		p.PExpire(ctx, s.key, v.stays())
		return nil
	})
	for _, cmd := range cmds {
		if refused(cmd.Err()) {
			return cmd.Err() // the reason; EXEC says only that there was one
		}
	}
	return err
}

// outlived are the fields of versions that are too many, or too large together, and of
// the sources that none of the others needs.
func (s *Store) outlived(all map[string]string, v *draft, size int) (gone []string) {
	needed := map[string]bool{}
	for _, sum := range v.sources() {
		needed[sum] = true
	}
	for sum, text := range v.texts {
		all[sourceField+sum] = string(text)
	}
	for _, n := range newestFirst(all) {
		text := all[fieldOf(n)]
		before, err := readVersion(n, text)
		size += len(text)
		for _, sum := range before.sources() {
			if !needed[sum] {
				size += len(all[sourceField+sum])
			}
		}
		if err != nil || v.Number-n >= Kept || size > s.most {
			gone = append(gone, fieldOf(n))
			size = max(size, s.most) // all that are older go too
			continue
		}
		for _, sum := range before.sources() {
			needed[sum] = true
		}
	}
	for field := range all {
		if sum, is := strings.CutPrefix(field, sourceField); is && !needed[sum] {
			gone = append(gone, field)
		}
	}
	return gone
}

func newestFirst(all map[string]string) (numbers []int64) {
	for field := range all {
		if digits, is := strings.CutPrefix(field, versionField); is {
			if n, err := strconv.ParseInt(digits, versionFormat, 64); err == nil {
				numbers = append(numbers, n)
			}
		}
	}
	slices.Sort(numbers)
	slices.Reverse(numbers)
	return numbers
}
