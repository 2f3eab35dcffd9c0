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

	"github.com/headway-go/headway/internal/filewatch"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// retryEvery is how often a file is tried again that Redis did not take, or that is being written just now.
const retryEvery = time.Second

// Reload publishes the limits file whenever it has changed and settled, and at each signal, until ctx ends. A file with faults changes
// nothing.
func (s *Source) Reload(ctx context.Context, signals <-chan os.Signal) {
	if s.read.stood.Info == nil {
		return // there is no file
	}
	changed, asked := s.changes(ctx, s.read.path), false
	taken, seen := s.read.stood, s.read.stood
	for {
		var retry <-chan time.Time
		if !s.look(ctx, &taken, &seen, asked) {
			retry = time.After(retryEvery)
		} else {
			asked = false
		}
		select {
		case <-ctx.Done():
			return
		case <-signals:
			asked = true
		case <-changed:
		case <-retry:
		}
	}
}

// look takes the file if it has changed since it was taken, or is asked for, and is as it was seen a second ago. It reports whether there is nothing more to do.
func (s *Source) look(ctx context.Context, taken, seen *filewatch.Stamp, asked bool) (done bool) {
	stands, err := filewatch.StampOf(s.read.path)
	if err == nil && !regular(stands) {
		err = errors.New("it is no file")
	}
	switch {
	case err != nil && asked:
		s.unread(ctx, err)
		return true
	case err != nil:
		return true // it is being replaced: that is a change
	case stands.Same(s.read.stood):
		s.mended()
	}
	if !asked && stands.Same(*taken) {
		return true
	}
	if !settled(stands) && !stands.Same(*seen) { // it may be half written: look again in a second
		*seen = stands
		return false
	}
	text, read, err := readFile(s.read.path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && !read.Same(stands):
		return false // replaced just now
	case err != nil:
		*taken = stands
		s.unread(ctx, err)
		return true
	}
	if done = s.take(ctx, text, read, asked, read.SameFile(*taken)); done {
		*taken = read
	}
	return done
}

func (s *Source) unread(ctx context.Context, err error) {
	s.log.ErrorContext(ctx, "cannot read the limits file; keeping the current limits", "file", s.read.path, "error", err)
	s.fault(fmt.Errorf("cannot read the limits file %s; keeping the current limits: %w", s.read.path, err))
}

// fault notes that the present file cannot be used.
func (s *Source) fault(err error) {
	s.faulty = true
	s.cfg.OnFault(err)
}

// mended notes that it can be used.
func (s *Source) mended() {
	if s.faulty {
		s.faulty = false
		s.cfg.OnFault(nil)
	}
}

// firstOf returns an error in one line: the first of many faults, and how many more there are.
func firstOf(err error) string {
	first, rest, _ := strings.Cut(err.Error(), "\n")
	if rest == "" {
		return first
	}
	return fmt.Sprintf("%s, and %d more; the log has all", first, 1+strings.Count(rest, "\n"))
}

// take publishes the text of the file. Only a file that was written in place can be half written. take returns false where Redis has to be
// asked again.
func (s *Source) take(ctx context.Context, text []byte, stands filewatch.Stamp, asked, inPlace bool) (done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rules, err := limitsyaml.Parse(s.read.path, text)
	before := s.read
	same := err == nil && bytes.Equal(limitsyaml.Format(rules), limitsyaml.Format(before.policy))
	switch {
	case inPlace && !asked && !same && len(text) < len(before.text) && bytes.HasPrefix(before.text, text):
		s.log.WarnContext(ctx, "limits file looks truncated and was not loaded; complete it, or rename a copy of it to its name to load it as it is",
			"file", s.read.path, "bytes", len(text), "before", len(before.text))
		s.fault(fmt.Errorf("the limits file %s looks truncated and was not loaded; keeping the current limits", s.read.path))
		return true
	case err != nil:
		s.log.ErrorContext(ctx, "invalid limits file; keeping the current limits", "file", s.read.path, "error", err)
		s.fault(fmt.Errorf("invalid limits file; keeping the current limits: %s", firstOf(err)))
		return true
	}
	s.mended()
	s.writable = s.writable || WarnOfMode(ctx, s.log, s.read.path, stands)
	s.read.text, s.read.stood = text, stands
	if same {
		if asked {
			s.log.InfoContext(ctx, "limits file unchanged", "file", s.read.path)
		}
		return true
	}
	s.read.policy = rules
	if err = s.publishIfPermitted(ctx, true); err != nil {
		s.read = before
		if !s.failed {
			s.log.WarnContext(ctx, "cannot publish the changed limits file; retrying", "file", s.read.path, "error", err)
		}
	}
	s.failed = err != nil
	return err == nil
}

// warnRemoved logs the rules and other fields of the file before, if there was any, that this one no longer has.
func (s *Source) warnRemoved(ctx context.Context, before *policy.Policy) {
	if before == nil {
		return
	}
	has := names(s.read.policy)
	removed := slices.DeleteFunc(names(before), func(name string) bool {
		_, still := slices.BinarySearch(has, name)
		return still
	})
	if len(removed) == 0 {
		return
	}
	const most = 20
	s.log.WarnContext(ctx, "the new limits file removes rules or settings",
		"file", s.read.path, "gone", len(removed), "names", strings.Join(removed[:min(most, len(removed))], ", "))
}

// names lists the rules and other fields of a policy by their places.
func names(p *policy.Policy) (list []string) {
	for path, r := range p.Rules() {
		list = append(list, path+" "+r.Name)
	}
	_, tree := p.Limits()
	for path, n := range policystore.Nodes(tree) {
		for field := range limitsyaml.Fields(n) {
			list = append(list, path+" "+field)
		}
	}
	slices.Sort(list)
	return list
}
