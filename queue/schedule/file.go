package schedule

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/strictyaml"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// File is the schedules of one schedules.yaml.
type File struct {
	Name      string      // as errors call it
	Schedules []*Schedule // in the order of the text
}

// FileError is the error of a refused file, with every fault in it.
type FileError = policy.Error

// Load reads the schedules.yaml at path. The error is a *FileError that names path, or that of the file system.
func Load(path string) (*File, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("schedule: read schedules: %w", err)
	}
	return Parse(path, data)
}

// Parse parses a schedules.yaml of at most 4 MiB; name is its name in errors. The error is a
// *FileError with every fault of the text, each with its line and column. Parse never guesses at a
// value.
//
// The text is plain YAML: one document in UTF-8, without anchors, aliases, merge keys or tags.
func Parse(name string, data []byte) (*File, error) {
	r := &reader{}
	file := &File{Name: name}
	if root := format.Read(data, &r.Faults); root != nil {
		file.Schedules = r.file(root)
	}
	if err := r.err(name); err != nil {
		return nil, err
	}
	return file, nil
}

// Check returns nil, or a *FileError with every schedule whose task could never run under a policy: no
// rule matches its scope, or no rule admits its cost.
func (f *File) Check(p *policy.Policy) error {
	r := &reader{}
	for _, s := range f.Schedules {
		scope, err := policy.ParseScope(s.Task.Scope)
		if err == nil {
			err = s.Task.CheckCosts(p, scope)
		}
		if err == nil {
			continue
		}
		name := "scope"
		if _, given := s.places["cost"]; given && errors.As(err, new(*policy.CostError)) {
			name = "cost"
		}
		r.ofTask(s, name, strings.TrimPrefix(err.Error(), "throttle: "))
	}
	return r.err(f.Name)
}

// CheckMethods returns nil, or a *FileError with every schedule whose task has a method that workers
// would refuse. See queue.Task.CheckMethod.
func (f *File) CheckMethods(allowed []string) error {
	r := &reader{}
	for _, s := range f.Schedules {
		if invalid, ok := errors.AsType[*queue.InvalidError](s.Task.CheckMethod(allowed)); ok {
			for _, fault := range invalid.Faults {
				r.ofTask(s, fault.Field, fault.Reason)
			}
		}
	}
	return r.err(f.Name)
}

// ofTask reports a fault of a field of a schedule's task.
func (r *reader) ofTask(s *Schedule, field, reason string) {
	r.Add(s.places[field], diag.PathTo("schedules", s.Name)+".task."+field, reason)
}

var scheduleFields = []string{"cron", "timezone", "jitter", "catch_up", "task"}

func (r *reader) file(root *yaml.Node) []*Schedule {
	if !r.Is(strictyaml.Field{Label: "the file", Key: root, Value: root}, yaml.MappingNode, "", "schedules: and names under it") {
		return nil
	}
	var schedules []*Schedule
	found := false
	for _, f := range r.Fields(root, "") {
		if f.Name != "schedules" {
			r.fault(strictyaml.PlaceOf(f.Key), f.Path, "%s is not a field of the file; write schedules", f.Label)
			continue
		}
		found = true
		if !r.Is(f, yaml.MappingNode, f.Path, "names under it, or {} for none") {
			continue
		}
		for _, f := range r.Fields(f.Value, f.Path) {
			schedules = append(schedules, r.schedule(f))
		}
	}
	if !found {
		r.fault(diag.Start, "schedules", "is missing; write schedules: and names under it, or {} for none")
	}
	return schedules
}

// schedule reads one schedule. The result is unusable if there are faults.
func (r *reader) schedule(f strictyaml.Field) *Schedule {
	if reason := diag.NameReason(f.Name); reason != "" {
		r.fault(strictyaml.PlaceOf(f.Key), f.Path, "the name %s", reason)
	}
	s := &Schedule{Name: f.Name, Timezone: "UTC", CatchUp: CatchUpLast}
	if !r.Is(f, yaml.MappingNode, f.Path, "its fields under it: cron and task") {
		return s
	}
	given := map[string]strictyaml.Field{}
	for _, f := range r.Fields(f.Value, f.Path) {
		if !slices.Contains(scheduleFields, f.Name) {
			r.unknown(f, "a schedule", scheduleFields)
			continue
		}
		given[f.Name] = f
	}
	for _, name := range []string{"cron", "task"} {
		if _, ok := given[name]; !ok {
			r.fault(strictyaml.PlaceOf(f.Key), diag.PathTo(f.Path, name), "%s is missing; write it", name)
		}
	}
	r.times(s, given)
	if f, ok := given["catch_up"]; ok {
		s.CatchUp = r.catchUp(f)
	}
	if f, ok := given["task"]; ok {
		s.Task, s.places = r.task(f)
	}
	return s
}

// times reads cron, timezone and jitter.
func (r *reader) times(s *Schedule, given map[string]strictyaml.Field) {
	zone := ""
	if f, ok := given["timezone"]; ok {
		text, ok := r.text(f, "a name of the IANA list, such as America/Los_Angeles")
		if s.Timezone = text; ok && text == "" {
			r.Bad(f, f.Path, "is empty; write UTC, or leave it out")
		} else if _, err := wallclock.Zone(text); ok && r.clock(f, err) {
			zone = text
		}
	}
	if f, ok := given["cron"]; ok {
		if text, ok := r.text(f, `five fields, such as "0 6 * * 1-5", or "@daily"`); ok {
			runs, err := wallclock.Parse(text, zone)
			s.Cron, s.runs = text, runs
			r.clock(f, err)
		}
	}
	if f, ok := given["jitter"]; ok {
		s.Jitter = r.jitter(f, s.runs)
	}
}

// clock reports whether package wallclock accepted a value, and adds the fault if it did not.
func (r *reader) clock(f strictyaml.Field, err error) bool {
	if we, ok := errors.AsType[*wallclock.Error](err); ok {
		r.Add(f.Place(), f.Path, we.Reason)
	}
	return err == nil
}

func (r *reader) jitter(f strictyaml.Field, runs *wallclock.Schedule) time.Duration {
	text, ok := r.text(f, "a duration, such as 30s or 5m")
	if !ok {
		return 0
	}
	d, err := queue.ParseDuration(text)
	switch {
	case err != nil:
		r.Add(f.Place(), f.Path, err.Error())
	case d == 0 || d%time.Second != 0:
		r.Bad(f, f.Path, "is %v; write whole seconds, which is what asynq keeps, or leave it out", d)
	case runs != nil && d >= runs.Gap():
		r.Bad(f, f.Path, "is %v and the runs are as close as %v; write less than that", d, runs.Gap())
	}
	return d
}

func (r *reader) catchUp(f strictyaml.Field) CatchUp {
	const want = "none, last or all"
	text, ok := r.text(f, want)
	c := CatchUp(text)
	if ok && !slices.Contains([]CatchUp{CatchUpNone, CatchUpLast, CatchUpAll}, c) {
		r.Bad(f, f.Path, "is %q; write %s", diag.Clip(text), want)
	}
	return c
}

var format = strictyaml.Format{
	TooLong: "divide it, one file to a group of workers",
	Empty:   "write schedules: {} if none are meant",
}

// reader decodes the nodes of a schedules.yaml into schedules, and collects every fault.
type reader struct{ strictyaml.Faults }

func (r *reader) fault(at diag.Place, path, format string, args ...any) {
	r.Add(at, path, fmt.Sprintf(format, args...))
}

func (r *reader) err(name string) error {
	if r.None() {
		return nil
	}
	return &FileError{Name: name, Faults: r.All()}
}

// text reads a text. A value that YAML reads as a number or the like must be quoted if text is meant.
func (r *reader) text(f strictyaml.Field, want string) (string, bool) {
	if !r.Is(f, yaml.ScalarNode, f.Path, want) {
		return "", false
	}
	if f.Value.Tag != "!!str" {
		r.Bad(f, f.Path, "is %s; write %s, or %q in quotes if that text is meant", strictyaml.Describe(f.Value), want, diag.Clip(f.Value.Value))
		return "", false
	}
	return f.Value.Value, true
}

// unknown reports a field that its owner does not have.
func (r *reader) unknown(f strictyaml.Field, owner string, known []string) {
	r.fault(strictyaml.PlaceOf(f.Key), f.Path, "%s is not a field of %s; %s", f.Label, owner, diag.Meant(f.Name, known))
}
