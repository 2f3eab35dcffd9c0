package outbound

import (
	"net/url"
	"strings"
)

// What counts as a key in a path: Slack's webhooks are /services/T…/B…/KEY, Telegram's
// /botNUMBER:KEY/sendMessage.
const (
	longestName   = 20 // bytes of a segment that may be a word
	shortestMixed = 8  // bytes of a segment with letters and digits that may be a key; oauth2 and v1beta1 are shorter
	longestNumber = 10 // digits of a segment that may be a count, a date or the number of an order
)

// secretSegment reports whether a segment of a path looks like a key, as it is or decoded.
func secretSegment(segment string) bool {
	if plain, err := url.PathUnescape(segment); err == nil {
		segment = plain
	}
	digits, others := 0, 0
	for i := range len(segment) {
		switch c := segment[i]; {
		case '0' <= c && c <= '9':
			digits++
		case c != '-' && c != '_' && c != '.':
			others++
		}
	}
	return len(segment) > longestName ||
		len(segment) >= shortestMixed && digits > 0 && others > 0 ||
		digits > longestNumber
}

// shownPath returns an escaped path without the parts that look like a key, and without known secrets.
func shownPath(path string, known []string) string {
	for _, secret := range known {
		path = strings.ReplaceAll(path, url.PathEscape(secret), redacted)
	}
	segments := strings.Split(path, "/")
	for i, segment := range segments {
		if segment != redacted && secretSegment(segment) {
			segments[i] = redacted
		}
	}
	return strings.Join(segments, "/")
}

// eachPathSecret calls look with each part that shownPath leaves out.
func eachPathSecret(path string, look func(string)) {
	for segment := range strings.SplitSeq(path, "/") {
		if secretSegment(segment) {
			look(segment)
		}
	}
}
