package limitsfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// reloadEvery is how often the limits file is looked at.
const reloadEvery = 250 * time.Millisecond

// Reload publishes the limits file whenever it has changed and settled, and at each signal, until ctx
// ends. A file with faults changes nothing.
func (l *Source) Reload(ctx context.Context, signals <-chan os.Signal) {
	if l.read.stood.info == nil {
		return // there is no file
	}
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	s := settling{taken: l.read.stood, seen: l.read.stood}
	asked := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			asked = true
		case <-tick.C:
		}
		stands, err := stampOf(l.read.path)
		if err == nil && !stands.regular() {
			err = errNoFile
		}
		if err == nil && stands.same(l.read.stood) {
			l.mended() // what was taken last stands there again
		}
		switch {
		case err != nil && asked:
			asked = false
			l.unread(ctx, err)
			continue
		case err != nil || !s.due(stands, time.Now(), asked):
			continue // it is being replaced, has not changed, or not settled
		}
		text, stands, err := readFile(l.read.path)
		switch {
		case errors.Is(err, fs.ErrNotExist) || err == nil && !stands.same(s.seen):
			continue // replaced just now
		case err != nil:
			s.taken, asked = s.seen, false
			l.unread(ctx, err)
			continue
		}
		if l.take(ctx, text, stands, asked, stands.sameFile(s.taken)) {
			s.taken, asked = stands, false
		}
	}
}

// errNoFile is of what cannot be read twice, such as a pipe.
var errNoFile = errors.New("it is no file")

func (l *Source) unread(ctx context.Context, err error) {
	l.log.ErrorContext(ctx, "cannot read the limits file; keeping the current limits", "file", l.read.path, "error", err)
	l.fault(fmt.Errorf("cannot read the limits file %s; keeping the current limits: %w", l.read.path, err))
}

// fault notes that what stands there cannot be used.
func (l *Source) fault(err error) {
	l.faulty = true
	l.onFault(err)
}

// mended notes that it can be used.
func (l *Source) mended() {
	if l.faulty {
		l.faulty = false
		l.onFault(nil)
	}
}

// firstOf is an error in one line: of many faults the first, and how many more there are.
func firstOf(err error) string {
	first, rest, _ := strings.Cut(err.Error(), "\n")
	if rest == "" {
		return first
	}
	return fmt.Sprintf("%s, and %d more; the log has all", first, 1+strings.Count(rest, "\n"))
}

// take publishes what the file says. Only a file that was written in place can be half written. take
// returns false where Redis has to be asked again.
func (l *Source) take(ctx context.Context, text []byte, stands Stamp, asked, inPlace bool) (done bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rules, err := limitsyaml.Parse(l.read.path, text)
	before := l.read
	says := err == nil && bytes.Equal(limitsyaml.Format(rules), limitsyaml.Format(before.policy))
	switch {
	case inPlace && !asked && !says && cutOff(before.text, text):
		l.log.WarnContext(ctx, "limits file looks truncated and was not loaded; complete it, or rename a copy of it to its name to load it as it is",
			"file", l.read.path, "bytes", len(text), "before", len(before.text))
		l.fault(fmt.Errorf("the limits file %s looks truncated and was not loaded; keeping the current limits", l.read.path))
		return true
	case err != nil:
		l.log.ErrorContext(ctx, "invalid limits file; keeping the current limits", "file", l.read.path, "error", err)
		l.fault(fmt.Errorf("invalid limits file; keeping the current limits: %s", firstOf(err)))
		return true
	}
	l.mended()
	l.writable = l.writable || WarnOfMode(ctx, l.log, l.read.path, stands)
	l.read.text, l.read.stood = text, stands
	if says {
		if asked {
			l.log.InfoContext(ctx, "limits file unchanged", "file", l.read.path)
		}
		return true
	}
	l.read.policy = rules
	err = l.publish(ctx, before.policy, before.policy)
	if errors.Is(err, policystore.ErrNotPermitted) {
		err = l.notPermitted(ctx, err)
	}
	if err != nil {
		l.read = before
		if !l.told {
			l.log.WarnContext(ctx, "cannot publish the changed limits file; retrying", "file", l.read.path, "error", err)
		}
		l.told = true
		return false
	}
	l.told = false
	return true
}

// cutOff tells whether a text is one of before whose rest is missing, as that of a file which is
// being written in place.
func cutOff(before, text []byte) bool {
	return len(text) < len(before) && bytes.HasPrefix(before, text)
}

// tellGone logs the rules and other fields that a new file no longer has.
func (l *Source) tellGone(ctx context.Context, before, after *policy.Policy) {
	if before == nil {
		return
	}
	gone := gone(before, after)
	if len(gone) == 0 {
		return
	}
	const most = 20
	l.log.WarnContext(ctx, "the new limits file removes rules or settings",
		"file", l.read.path, "gone", len(gone), "names", strings.Join(gone[:min(most, len(gone))], ", "))
}

// gone lists the names of a policy that another one lacks.
func gone(before, after *policy.Policy) []string {
	has := map[string]bool{}
	for _, name := range names(after) {
		has[name] = true
	}
	return slices.DeleteFunc(names(before), func(name string) bool { return has[name] })
}

// names lists the rules of a policy by their places, and what else it says of scopes.
func names(p *policy.Policy) (list []string) {
	_, tree := p.Limits()
	for path, r := range policystore.Rules(tree) {
		list = append(list, path+" "+r.Name)
	}
	for path, n := range policystore.Nodes(tree) {
		for field := range policystore.Fields(n) {
			list = append(list, path+" "+field)
		}
	}
	slices.Sort(list)
	return list
}
