import java.io.File;
import java.util.concurrent.CountDownLatch;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** Runs a name node, at a port, and a data node in a directory; prints their URI when they serve. */
public final class OneNodeHdfs {
  public static void main(String[] arguments) throws Exception {
    var settings = new Configuration();
    settings.set("dfs.permissions.enabled", "false");
    var directory = new File(arguments[0]);
    var cluster =
        new MiniDFSCluster.Builder(settings, directory)
            .nameNodePort(Integer.parseInt(arguments[1]))
            .format(!directory.exists())
            .numDataNodes(1)
            .build();
    cluster.waitActive();
    System.out.println(cluster.getURI());
    new CountDownLatch(1).await();
  }
}
