package throttle

import "github.com/headway-go/headway/throttle/policy"

// hearsHost reports whether answers of a host count. The host is that of Hint.Host.
func (p *compiledScope) hearsHost(host string) bool {
	if len(p.hosts) == 0 || host == "" {
		return true
	}
	return policy.HostMatches(p.hosts, host)
}
