package policystore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// Edit is the author, the reason and the conditions of a change.
type Edit struct {
	// By is the author in the history: a label that is not verified. The history also records the Redis user. Required.
	By string
	// Reason and Via are the reason of the change and its way, such as "page", in the history: up to MaxReason and 64 bytes of printable
	// text. They default to none.
	Reason, Via string
	IfVersion   int64         // refuses the change unless this version is the current one; 0 for any
	For         time.Duration // how long a rule stays set or removed, or a scope paused; 0 for permanently
	// DryRun writes nothing: the result is what the change would come to, and so is the error, but for ErrNotPermitted.
	DryRun bool
}

// MaxReason is the maximum length of an Edit.Reason in bytes.
const MaxReason = 500

// RefusedError is the error of a change that makes no sense for the limits as they are, and says why. Nothing was changed.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return "policystore: " + e.Reason }

func refuse(format string, args ...any) error { return &RefusedError{fmt.Sprintf(format, args...)} }

// Check refuses an edit without an author, and texts that a history could not print.
func (e Edit) Check() error {
	switch {
	case strings.TrimSpace(e.By) == "" || !printable(e.By):
		return refuse("a change needs an author, in printable characters, and not %.40q", e.By)
	case len(e.Reason) > MaxReason:
		return refuse("the reason is %d bytes long; the most is %d", len(e.Reason), MaxReason)
	case !printable(e.Reason):
		return refuse("the reason holds a character that cannot be printed; write it on one line")
	case len(e.Via) > 64 || !printable(e.Via):
		return refuse("the way of a change is up to 64 bytes of printable text, and not %.80q", e.Via)
	case e.For < 0 || e.For > 0 && e.For <= Notice:
		return refuse("for %s is too short: a change comes into force after %s", e.For, Notice)
	}
	return nil
}

func printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// Made is the result of a change. With ErrUnchanged it is the current state.
type Made struct {
	Version              Version   // that the change made
	Before               *Override // of the rule or pause that was changed, or nil for none
	PolicyBefore, Policy *policy.Policy
	Differences          []Difference // that the change made, as in Store.Changes
}

// ErrUnchanged is the error of a change that would change nothing.
var ErrUnchanged = errors.New("policystore: it is so already; nothing was changed")

// ConflictError is the error of a change that was meant for another version. Nothing was changed.
type ConflictError struct {
	Want int64 // Edit.IfVersion
	Now  Version
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("policystore: meant for version %d, and the limits are at version %d, %q by %q at %s; nothing was changed",
		e.Want, e.Now.Number, e.Now.Change, e.Now.By, e.Now.At.UTC().Format(time.RFC3339))
}

// draft is a version that is being made. At is when.
type draft struct {
	Version
	Edit
	before record         // the current version, the zero record for none
	base   *policy.Policy // the policy below the changes of before
	was    *policy.Policy // the policy of before
	over   *policy.Policy // the policy below the changes of the draft
	is     *policy.Policy // the policy of the draft
	texts  map[string]string
	tiered func(*policy.Policy) *policy.Policy
}

// tries is how often a change is made again because another one was written meanwhile.
const tries = 20

// edit makes the next version from the current one, and writes it. If another change was written since it was read, edit starts again from
// that one.
func (s *Store) edit(ctx context.Context, e Edit, change func(*draft) error) (Made, error) {
	if err := e.Check(); err != nil {
		return Made{}, err
	}
	for range tries {
		var d *draft
		var failed error
		err := s.rdb.Watch(ctx, func(tx *redis.Tx) error {
			if d, failed = s.draft(ctx, tx, e); failed == nil {
				failed = s.apply(ctx, tx, d, change)
			}
			if failed != nil || e.DryRun {
				return failed
			}
			return s.write(ctx, tx, d)
		}, s.key)
		switch {
		case denied(err):
			return Made{}, fmt.Errorf("%w: %w", ErrNotPermitted, err)
		case failed != nil && d != nil:
			return Made{Version: d.before.Version, PolicyBefore: d.was, Policy: d.was}, failed
		case failed != nil:
			return Made{}, failed
		case err == nil:
			return d.made()
		case !errors.Is(err, redis.TxFailedErr):
			return Made{}, unavailable(ctx, "change", err)
		}
	}
	return Made{}, refuse("%d other changes came first; nothing was changed", tries)
}

// draft begins the next version. It reads on the connection that watches.
func (s *Store) draft(ctx context.Context, tx *redis.Tx, e Edit) (*draft, error) {
	now, err := serverTime(ctx, tx)
	if err != nil {
		return nil, err
	}
	before, err := s.current(ctx, tx)
	if err != nil && !errors.Is(err, ErrNone) {
		return nil, err
	}
	if e.IfVersion > 0 && e.IfVersion != before.Number {
		return nil, &ConflictError{Want: e.IfVersion, Now: before.Version}
	}
	user, _ := tx.ACLWhoAmI(ctx).Result() // empty for a server without users, or a user that may not ask
	d := &draft{Version: before.clone(), Edit: e, before: before, texts: map[string]string{}}
	d.Number, d.At, d.InForce = before.Number+1, now, now.Add(Notice)
	d.Version.By, d.Version.Reason, d.Version.Via, d.User = e.By, e.Reason, e.Via, user
	d.Resets, d.Breaker, d.Tiers = nil, "", nil
	if d.base, err = s.base(ctx, tx, before.Version); err != nil {
		return nil, err
	}
	if d.was, _, err = before.policyOver(d.base, now); err != nil {
		return nil, err
	}
	d.tiered = func(p *policy.Policy) *policy.Policy { return s.WithTiers(ctx, p) }
	d.was = d.tiered(d.was)
	return d, nil
}

// apply makes the change, and refuses a policy that would be invalid.
func (s *Store) apply(ctx context.Context, tx *redis.Tx, d *draft, change func(*draft) error) (err error) {
	if err := change(d); err != nil {
		return err
	}
	d.Overrides = slices.DeleteFunc(d.Overrides, func(o Override) bool { return o.ended(d.At) })
	source := d.source()
	switch {
	case sameSource(source, d.before.source()):
		d.over = d.base
	case source != nil && d.texts[source.Sum] != "":
		d.over, err = limitsyaml.Parse("the limits", []byte(d.texts[source.Sum]))
	default:
		d.over, err = s.base(ctx, tx, d.Version)
	}
	if err == nil {
		d.is, _, err = d.policy(d.over, d.At)
	}
	return err
}

// made returns the result of a change that was written.
func (d *draft) made() (Made, error) {
	before := &state{Version: d.before.Version, base: &base{policy: d.base}}
	after := &state{Version: d.Version, base: before.base}
	if d.over != d.base {
		after.base = &base{policy: d.over}
	}
	list, err := differences(before, after, d.At, d.At)
	return Made{Version: d.Version, PolicyBefore: d.was, Policy: d.is, Differences: list}, err
}

// authorship returns that of what the edit makes or changes.
func (d *draft) authorship() Authorship {
	return Authorship{
		CreatedBy: d.Edit.By, CreatedUser: d.User, CreatedAt: d.At,
		UpdatedBy: d.Edit.By, UpdatedUser: d.User, UpdatedAt: d.At, Reason: d.Edit.Reason,
	}
}

// bring makes a policy a source of the draft.
func (d *draft) bring(p *policy.Policy) *Source {
	text := limitsyaml.Format(p)
	sum := sumOf(text)
	d.texts[sum] = string(text)
	return &Source{Sum: sum, By: d.Edit.By, User: d.User, At: d.At, Reason: d.Edit.Reason}
}

const (
	// Kept is how many versions are kept at most, and keptBytes how large they may be together, if all were as large as the one that is
	// written: the oldest go first.
	Kept      = 100
	keptBytes = 16 << 20
	keptFiles = 200 // how many files are remembered as published
	// keptFor is how long the limits stay after the last change, or after a process that may write them last followed them.
	keptFor = 366 * 24 * time.Hour
)

// kept returns how many versions are kept when one of a size is written.
func kept(size int) int64 { return int64(min(Kept, max(2, keptBytes/size))) }

// write writes a draft and removes the oldest versions, unless the key has changed since it is watched.
func (s *Store) write(ctx context.Context, tx *redis.Tx, d *draft) error {
	r := record{Version: d.Version, Sources: map[string]int64{}}
	maps.Copy(r.Sources, d.before.Sources)
	for _, source := range []*Source{d.File, d.Imported} {
		if source != nil {
			r.Sources[source.Sum] = d.Number
		}
	}
	text, _ := json.Marshal(r) // a record always has a JSON
	size := len(text)
	for _, source := range d.texts {
		size += len(source)
	}
	r.Oldest = max(1, d.before.Oldest, d.Number-kept(size)+1)
	gone := r.prune(d.before.Oldest)
	text, _ = json.Marshal(r)
	cmds, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
		for sum, source := range d.texts {
			p.HSet(ctx, s.key, sourcePrefix+sum, source)
		}
		s.writeTiers(ctx, p, d.Tiers)
		p.HSet(ctx, s.key, versionField(d.Number), text, markField, markOf(d.Version))
		p.PExpire(ctx, s.key, keptFor)
		if len(gone) > 0 {
			p.HDel(ctx, s.key, gone...)
		}
		return nil
	})
	for _, cmd := range cmds {
		if denied(cmd.Err()) {
			return cmd.Err() // the reason; EXEC says only that there was one
		}
	}
	return err
}

// prune returns the fields of the versions that are not kept any more, and of the sources that only those needed.
func (r *record) prune(oldest int64) (gone []string) {
	for number := max(1, oldest); number < r.Oldest; number++ {
		gone = append(gone, versionField(number))
	}
	for sum, newest := range r.Sources {
		if newest < r.Oldest {
			delete(r.Sources, sum)
			gone = append(gone, sourcePrefix+sum)
		}
	}
	return gone
}

// mayChange returns ErrNotPermitted if the Redis user may not change the limits: it removes a field that is never there.
func (s *Store) mayChange(ctx context.Context) error {
	err := s.rdb.HDel(ctx, s.key, "").Err()
	if err == nil {
		return nil
	} else if denied(err) {
		return fmt.Errorf("%w: %w", ErrNotPermitted, err)
	}
	return unavailable(ctx, "ask for the permission to change", err)
}

// PublishFile makes p the limits file of all processes. A file that was published before, and replaced since, changes nothing while a
// worker runs: so a restart during a rolling deploy brings no old limits back. changed publishes p in any case. Costs some round trips.
func (s *Store) PublishFile(ctx context.Context, by string, p *policy.Policy, changed bool) (published bool, v Version, err error) {
	again := changed || !s.workerRuns(ctx)
	made, err := s.edit(ctx, Edit{By: by}, func(d *draft) error {
		source := d.bring(p)
		if !d.takes(source.Sum, again) {
			return ErrUnchanged
		}
		d.File = source
		d.Files = append(slices.DeleteFunc(d.Files, func(known string) bool { return known == source.Sum }), source.Sum)
		d.Files = d.Files[max(0, len(d.Files)-keptFiles):]
		d.Change = "publish a limits file"
		return nil
	})
	if errors.Is(err, ErrUnchanged) {
		return false, made.Version, nil
	}
	return err == nil, made.Version, err
}

// takes reports whether publishing a file changes the limits. again is whether a file that was replaced is published again.
func (v Version) takes(sum string, again bool) bool {
	return (v.File == nil || v.File.Sum != sum) && (again || !slices.Contains(v.Files, sum))
}

// workerRuns reports whether a worker runs, as far as that is known.
func (s *Store) workerRuns(ctx context.Context) bool {
	processes, err := s.Processes(ctx)
	return err != nil || slices.ContainsFunc(processes, func(p Process) bool { return p.Worker })
}

// Preview returns the policy that would be in force after a starting process had published p, and changes nothing. If p is replaced, was
// imported over or may not be published, that is the current policy. A nil p is no file. The error is ErrNone if there is neither, a
// *DamagedError, or a *policy.Error if live changes do not fit p. Costs some round trips.
func (s *Store) Preview(ctx context.Context, p *policy.Policy) (*policy.Policy, error) {
	v, err := s.Current(ctx)
	if errors.Is(err, ErrNone) && p != nil {
		return p, nil
	}
	if err != nil || p == nil || v.Imported != nil || !v.takes(sumOf(limitsyaml.Format(p)), !s.workerRuns(ctx)) || s.mayChange(ctx) != nil {
		return s.Now(ctx)
	}
	now, err := s.Time(ctx)
	if err != nil {
		return nil, err
	}
	then, _, err := v.policy(p, now)
	return then, err
}
