package cli

import (
	"cmp"
	"errors"
	"flag"
	"regexp"
	"slices"
	"strings"

	"github.com/headway-go/headway/internal/diag"
)

// variablePrefix begins the name of every environment variable that the programs read for a flag.
const variablePrefix = "HEADWAY_"

// oneShot are the flags that commands which do one thing and end read from the environment
// too: which Redis, limits and worker, as whom, within which bounds, and how to print. What they do
// is typed: a variable that is set for a whole machine must not change a limit, or a task.
var oneShot = []string{"redis", "limits", "app", "listen", "as", "within", "max-priority", "max-timeout", "allow-method", "json"}

// Variable returns the environment variable of a flag: HEADWAY_MAX_TIMEOUT of max-timeout.
func Variable(flagName string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(flagName, "-", "_"))
}

// variables are what is looked up for a flag, the first that is set. REDIS_URL is what
// hosting services set.
func variables(flagName string) []string {
	if flagName == "redis" {
		return []string{Variable(flagName), "REDIS_URL"}
	}
	return []string{Variable(flagName)}
}

// readEnvironment sets the flags that were not given and whose variable is not blank. For
// the flag package they stay as not given. Its error names each variable whose value a flag
// does not take.
func (c *Command) readEnvironment(getenv func(string) string) error {
	given := map[string]bool{}
	c.Flags.Visit(func(f *flag.Flag) {
		// An empty -redis is most likely an unset variable of a script, and no wish for the default.
		given[f.Name] = f.Name != "redis" || f.Value.String() != ""
	})
	c.from = map[string]string{}
	var faults []error
	c.Flags.VisitAll(func(f *flag.Flag) {
		if given[f.Name] || !c.hasVariable(f.Name) {
			return
		}
		for _, variable := range variables(f.Name) {
			value := strings.TrimSpace(getenv(variable))
			if value == "" {
				continue
			}
			c.from[f.Name] = variable
			if err := setFrom(f.Value, value); err != nil {
				faults = append(faults, Errorf(cmp.Or(tryOf(f.Value, variable), c.Name+" -h"), "invalid value %q for %s: %v", value, variable, err))
			}
			return
		}
	})
	return errors.Join(faults...)
}

func setFrom(v flag.Value, value string) error {
	if _, list := v.(*List); !list {
		return v.Set(value)
	}
	for part := range strings.SplitSeq(value, ",") {
		if err := v.Set(strings.TrimSpace(part)); err != nil {
			return err
		}
	}
	return nil
}

func tryOf(v flag.Value, variable string) string {
	if isBool(v) {
		return variable + "=true or " + variable + "=false"
	}
	return ""
}

func isBool(v flag.Value) bool {
	b, ok := v.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// kubernetes matches what Kubernetes sets in all containers for a Service whose name begins
// with headway-: HEADWAY_REDIS_SERVICE_HOST, HEADWAY_REDIS_PORT_6379_TCP.
var kubernetes = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)?)$`)

// UnknownVariable is one that begins as those of Headway do and that no command reads.
type UnknownVariable struct {
	Name    string
	Nearest string // the known one that was most likely meant, "" for none
}

// UnknownVariables returns the variables in environ, which is as os.Environ returns it, that
// begin with HEADWAY_ and are not known, in order.
func UnknownVariables(environ, known []string) (unknown []UnknownVariable) {
	short := make([]string, len(known)) // as diag.Nearest compares words
	for i, name := range known {
		short[i] = strings.ToLower(strings.TrimPrefix(name, variablePrefix))
	}
	for _, setting := range environ {
		name, _, _ := strings.Cut(setting, "=")
		word, ours := strings.CutPrefix(name, variablePrefix)
		if !ours || slices.Contains(known, name) || kubernetes.MatchString(name) {
			continue
		}
		one := UnknownVariable{Name: name}
		if near := diag.Nearest(word, short); near != "" {
			one.Nearest = Variable(near)
		}
		unknown = append(unknown, one)
	}
	slices.SortFunc(unknown, func(a, b UnknownVariable) int { return strings.Compare(a.Name, b.Name) })
	return unknown
}

// KnownVariables are the variables of the flags of root and of the commands below it, and
// those that commands of other programs have.
func KnownVariables(root *Command) (known []string) {
	for _, name := range oneShot {
		known = append(known, Variable(name))
	}
	for _, c := range root.All() {
		c.Flags.VisitAll(func(f *flag.Flag) {
			if c.hasVariable(f.Name) {
				known = append(known, Variable(f.Name))
			}
		})
	}
	return known
}
