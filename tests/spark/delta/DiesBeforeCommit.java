import io.delta.storage.HDFSLogStore;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/** Delta's store of commits, which kills driver and JVM when the data of a commit is written. */
public final class DiesBeforeCommit extends HDFSLogStore {
  public DiesBeforeCommit(Configuration settings) {
    super(settings);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration settings)
      throws IOException {
    var commit = new ArrayList<String>();
    actions.forEachRemaining(commit::add);
    if (commit.stream().anyMatch(action -> action.startsWith("{\"add\":"))) {
      ProcessHandle.current().parent().ifPresent(ProcessHandle::destroyForcibly);
      Runtime.getRuntime().halt(137);
    }
    super.write(path, commit.iterator(), overwrite, settings);
  }
}
